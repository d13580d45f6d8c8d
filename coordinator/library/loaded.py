"""The models that this coordinator serves: loaded once, on first use, and unloaded to make room for
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from coordinator.answers import ServedModel
from coordinator.library.naming import Names
from models.catalogue import catalogue
from models.catalogue.catalogue import LoadedModel
from models.catalogue.loading import network_of
from models.cut.cutter import CutTile, cut
from models.cut.program import BlobSource, Digests
from models.graph.sizes import split_name
from models.onnx_file.mapped import MappedWeights
from models.onnx_file.stored import Allocate, in_memory
from models.tensors.boxes import Box
from models.vision.pixels import without_pixels
from models.vision.predictions import check_outputs

log = structlog.get_logger(__name__)

# Input sizes of one model that stay loaded: of a home's cameras.
MOST_SIZES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model with what planning and measuring need of it."""

    served: ServedModel
    digests: Digests = field(repr=False, default_factory=Digests)

    @property
    def weight_bytes(self) -> int:
        """Bytes of its constants, on disk or in memory."""
        return self.served.network.graph.constant_bytes

    def blobs(self) -> BlobSource:
        """Provides the weights of one plan, for as long as the plan exists."""
        return BlobSource(self.digests)

    def whole(self) -> tuple[CutTile, BlobSource]:
        """The unsplit model as one program: the baseline of every plan."""
        graph, blobs = without_pixels(self.served.network.graph), self.blobs()
        everything = {name: Box.whole(graph.shape(name)) for name in graph.results}
        return cut(graph, graph.nodes, everything, blobs, static=True), blobs


class Library:
    """Models by name or path; concurrent requests for one model load it once. `folder` is for files
    of weights. Beyond `most_bytes` of weights, `let_go`
    is called for the models that have been unused for longest, one after the other, and returns
    whether it unloaded the model.
    """

    def __init__(
        self,
        names: Names,
        folder: Path,
        most_bytes: int,
        let_go: Callable[[str], bool],
    ) -> None:
        self._names = names
        self._folder = folder
        self.most_bytes = most_bytes
        self._let_go = let_go
        # The most recently used one is last.
        self._models: dict[str, asyncio.Task[Loaded]] = {}

    def loaded(self) -> dict[str, Loaded]:
        """The loaded models, by the name or path that they were loaded by."""
        return {
            name: task.result()
            for name, task in self._models.items()
            if task.done() and not task.cancelled() and task.exception() is None
        }

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of all loaded models."""
        return sum(each.weight_bytes for each in self.loaded().values())

    async def get(self, name: str) -> Loaded:
        """The model, loaded in a thread if necessary.

        Raises:
            NotFound: no such name or file.
            BadRequest: the file cannot be used.
        """
        task = self._models.pop(name, None)
        is_new = task is None
        if task is None:
            loading = asyncio.to_thread(load, name, self._names.public(name)[0], self._folder)
            task = asyncio.create_task(loading)
        self._models[name] = task
        try:
            found = await asyncio.shield(task)
        except Exception:
            self._models.pop(name, None)
            raise
        if is_new:
            self._make_room(name)
        return found

    def forget(self, name: str) -> None:
        """Forgets a model: the next `get` loads it again."""
        self._models.pop(name, None)

    def _make_room(self, newest: str) -> None:
        others = [name for name in self.loaded() if name != newest]
        sizes = [name for name in others if _are_sizes_of_one(name, newest)]
        for name in others:
            # A client may ask for any number of sizes.
            is_one_of_many = name in sizes[: 1 - MOST_SIZES]
            if (is_one_of_many or self.weight_bytes > self.most_bytes) and self._let_go(name):
                log.info("model unloaded to make room for others", model=name)


def _are_sizes_of_one(name: str, other: str) -> bool:
    (plain, size), (of_other, its_size) = split_name(name), split_name(other)
    return plain == of_other and size is not None and its_size is not None


def load(name: str, shown: str, folder: Path | None = None) -> Loaded:
    """Loads a catalogue name or an `.onnx` file, to be called `shown`. Its weights are mapped from
    a file in `folder` if that disk has room, and kept in memory otherwise.
    """
    loaded = catalogue.load(name)
    network = network_of(loaded, shown, _room(loaded, folder))
    if loaded.sidecar is not None:
        check_outputs(loaded.sidecar, network.graph.output_shapes)
    return Loaded(ServedModel(shown, name, network, loaded.sidecar, loaded.trained))


def _room(loaded: LoadedModel, folder: Path | None) -> Allocate:
    if folder is not None:
        try:
            return MappedWeights(folder, loaded.stored.sizes).empty
        except OSError as error:
            log.warning("weights stay in memory", folder=str(folder), cause=error.strerror)
    return in_memory
