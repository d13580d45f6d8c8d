"""The models that this coordinator serves: which there are, and which of them are loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from coordinator.answers import ServedModel
from coordinator.devices.announcements import Announcements
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
from protos.errors import NotFound

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


@dataclass(frozen=True, slots=True)
class ModelForgotten:
    """A model was replaced or unloaded. One that `stays` is loaded again at once, and its programs
    may still be of use.
    """

    model: str
    stays: bool


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """A model takes memory from now on."""

    model: str


class Library:
    """The models of one coordinator by their sources, which `names` knows: loaded once, on first
    use, and unloaded to make room for others. `folder` is for files of weights, of which
    `most_bytes` may be loaded. Announces models that are loaded for requests, and forgotten.
    """

    def __init__(
        self, names: Names, folder: Path, most_bytes: int, announcements: Announcements
    ) -> None:
        self.names = names
        self._folder = folder
        self._most_bytes = most_bytes
        self._announcements = announcements
        # The most recently used one is last.
        self._models: dict[str, asyncio.Task[Loaded]] = {}
        self._unloaded: set[str] = set()
        # Of these when they were loaded, and `refreshed` of the names when they were compared.
        self._stamps: dict[str, tuple[int, int] | None] = {}
        self._compared = names.refreshed

    async def get(self, model: str) -> ServedModel:
        """A model, loaded on first use.

        Raises:
            NotFound: no such name or file, or it was unloaded.
            BadRequest: the file cannot be used.
        """
        if model in self._unloaded:
            raise NotFound(
                cause=f"the model {self.names.public(model)[0]} was unloaded",
                cure="Load it again: POST /v2/repository/models/NAME/load",
            )
        if self._compared != self.names.refreshed:
            self._forget_replaced()
        is_new = model not in self._models
        loaded = await self.load(model)
        if is_new:
            self._announcements.announce(ModelLoaded(model))
        return loaded.served

    async def load(self, model: str) -> Loaded:
        """As `get`, of a model that is in use: nothing else is unloaded, and it is not replaced."""
        task = self._models.pop(model, None)
        if task is None:
            self._stamps[model] = self.names.stamp(model)
            loading = asyncio.to_thread(load, model, self.names.public(model)[0], self._folder)
            task = asyncio.create_task(loading)
        self._models[model] = task
        try:
            return await asyncio.shield(task)
        except Exception:
            self._models.pop(model, None)
            raise

    def loaded(self) -> dict[str, Loaded]:
        """The loaded models, by the name or path that they were loaded by."""
        return {
            model: task.result()
            for model, task in self._models.items()
            if task.done() and not task.cancelled() and task.exception() is None
        }

    def is_loaded(self, model: str) -> bool:
        """Whether `get` would return without loading."""
        return not self.is_unloaded(model) and model in self.loaded()

    def is_unloaded(self, model: str) -> bool:
        """Whether requests to the model are refused until `reload`."""
        return model in self._unloaded

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of all loaded models."""
        return sum(model.weight_bytes for model in self.loaded().values())

    def unload(self, model: str) -> None:
        """Unloads a model: requests to it are refused until `reload`. Those in flight finish."""
        self._unloaded.add(model)
        self._forget(model)

    def reload(self, model: str) -> None:
        """Has the next `get` load a model from its file as it is then."""
        self._unloaded.discard(model)
        self._forget(model, stays=True)

    def let_go(self, model: str, keep: Callable[[str], bool]) -> bool:
        """Unloads a model until the next request to it, unless it is configured or to be kept.
        Returns whether it was unloaded.
        """
        if model in self.names.configured or keep(model):
            return False
        self._forget(model)
        return True

    def make_room(self, newest: str, keep: Callable[[str], bool]) -> None:
        """Beyond the room for weights and for sizes of one model, unloads those that have been
        unused for longest, until the next request to them, but not the `newest`, configured ones
        and those to `keep`.
        """
        others = [name for name in self.loaded() if name != newest]
        sizes = [name for name in others if _are_sizes_of_one(name, newest)]
        for name in others:
            # A client may ask for any number of sizes.
            is_one_of_many = name in sizes[: 1 - MOST_SIZES]
            if (is_one_of_many or self.weight_bytes > self._most_bytes) and self.let_go(name, keep):
                log.info("model unloaded to make room for others", model=name)

    def _forget_replaced(self) -> None:
        """Forgets models whose files are others than when they were loaded."""
        self._compared = self.names.refreshed
        with self._announcements.held():
            for model in list(self._models):
                if self._stamps[model] != self.names.stamp(model):
                    log.info("model replaced", model=model)
                    self._forget(model)

    def _forget(self, model: str, *, stays: bool = False) -> None:
        self._models.pop(model, None)
        self._stamps.pop(model, None)
        self._announcements.announce(ModelForgotten(model, stays))


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
