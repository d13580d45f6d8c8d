"""The models that this coordinator serves: loaded once, on first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import onnx

from coordinator.answers import ServedModel
from models import catalogue
from models.boxes import Box
from models.cutter import cut
from models.loading import network_of
from models.pixels import without_pixels
from models.predictions import check_outputs
from models.program import BlobSource, Program

# Each holds its weights; a home serves a handful.
MAX_MODELS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model with what planning and measuring need. `whole` is the unsplit model as one
    program, the baseline that every plan is compared with.
    """

    served: ServedModel
    proto: onnx.ModelProto = field(repr=False)
    blobs: BlobSource = field(repr=False)
    whole: Program = field(repr=False)


class Library:
    """Models by name or path; concurrent requests for one model load it once. `shown` gives the
    name that people see.
    """

    def __init__(self, shown: Callable[[str], str]) -> None:
        self._shown = shown
        self._models: dict[str, asyncio.Task[Loaded]] = {}

    def loaded(self) -> dict[str, Loaded]:
        """Models that are loaded, by the name or path that they were asked for by."""
        return {
            name: task.result()
            for name, task in self._models.items()
            if task.done() and not task.cancelled() and task.exception() is None
        }

    async def get(self, name: str) -> Loaded:
        """The model; loading it takes a thread, not the event loop.

        Raises:
            NotFound: no such name or file.
            BadRequest: the file cannot be used.
        """
        task = self._models.get(name)
        if task is None:
            if len(self._models) >= MAX_MODELS:
                self._models.pop(next(iter(self._models)))
            task = asyncio.create_task(asyncio.to_thread(load, name, self._shown(name)))
            self._models[name] = task
        try:
            return await asyncio.shield(task)
        except Exception:
            self._models.pop(name, None)
            raise

    def forget(self, name: str) -> None:
        """Forgets a model: the next `get` loads it anew."""
        self._models.pop(name, None)


def load(name: str, shown: str) -> Loaded:
    """Loads a catalogue name or an `.onnx` file, to be called `shown`."""
    loaded = catalogue.load(name)
    network = network_of(loaded, shown)
    graph, blobs = without_pixels(network.graph), BlobSource()
    if loaded.sidecar is not None:
        check_outputs(loaded.sidecar, {each: graph.shape(each) for each in graph.outputs})
    everything = {tensor: Box.whole(graph.shape(tensor)) for tensor in graph.outputs}
    return Loaded(
        served=ServedModel(shown, network, loaded.sidecar, loaded.trained),
        proto=loaded.proto,
        blobs=blobs,
        whole=cut(graph, graph.nodes, everything, blobs, static=True).program,
    )
