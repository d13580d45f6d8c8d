"""The protocol's operations, independent of HTTP and gRPC."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

from coordinator.answers import ServedModel
from coordinator.serving.common.pictures import answered
from coordinator.serving.oip.request import InferAnswer, InferRequest, wanted
from coordinator.serving.oip.statistics import Statistics
from coordinator.serving.oip.tensors import datatype_of
from models.graph.graph import Graph
from protos.errors import NotFound, Unavailable, Unsupported

if TYPE_CHECKING:
    from coordinator.service import Coordinator

RequestReader = Callable[[Graph], InferRequest]

PLATFORM = "onnx_onnxv1"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "statistics",
)


class InferenceService:
    """The protocol's operations on one coordinator. Raises errors of `protos.errors`."""

    def __init__(self, coordinator: "Coordinator") -> None:
        self.coordinator = coordinator
        self.statistics = Statistics()
        coordinator.journal.listen(self.statistics.count)

    # ------------------------------------------------------------ health and metadata

    def ready(self) -> bool:
        """Whether every configured model is ready."""
        return self.coordinator.served.readiness()[0]

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether this model is ready.

        Raises:
            NotFound: no such model or version.
        """
        try:
            source = self.coordinator.names.source(name, version)
        except Unavailable:  # another coordinator has it
            return False
        return self.coordinator.served.readiness_of(source)[0]

    def server(self) -> dict[str, Any]:
        """Name, version, extensions."""
        version = metadata.version("imbrex")
        return {"name": "imbrex", "version": version, "extensions": list(EXTENSIONS)}

    def require_loaded(self, name: str, version: str = "") -> None:
        """Refuses a model that is not loaded: questions that a browser can be made to ask load
        nothing.

        Raises:
            NotFound: no such model or version, or it is not loaded.
        """
        if not self.coordinator.library.is_loaded(self.coordinator.names.source(name, version)):
            raise NotFound(
                cause=f"the model {name} is not loaded",
                cure=f"Load it: POST /v2/repository/models/{name}/load, or send it a request",
            )

    async def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """A model's versions and tensors."""
        served = await self.model(name, version)
        graph = served.network.graph
        return {
            "name": name,
            "versions": [version] if version else list(self.coordinator.names.versions(name)),
            "platform": PLATFORM,
            "inputs": [_tensor(graph, name) for name in graph.inputs],
            "outputs": [_tensor(graph, name) for name in graph.outputs],
        }

    async def config(self, name: str, version: str = "") -> dict[str, Any]:
        """A model's configuration as Triton describes it, with shapes that include the batch of
        one.
        """
        served = await self.model(name, version)
        graph, number = (served.network.graph, int(self.coordinator.names.public(served.source)[1]))
        return {
            "name": name,
            "platform": "onnxruntime_onnx",
            "backend": "onnxruntime",
            "version_policy": {"specific": {"versions": [number]}},
            "max_batch_size": 0,
            "input": [_config_tensor(graph, name) for name in graph.inputs],
            "output": [_config_tensor(graph, name) for name in graph.outputs],
            "default_model_filename": "model.onnx",
        }

    async def model(self, name: str, version: str = "") -> ServedModel:
        """A model.

        Raises:
            NotFound, BadRequest: no such model or version, or it cannot be used.
        """
        return await self.coordinator.library.get(self.coordinator.names.source(name, version))

    # ------------------------------------------------------------ inference

    @asynccontextmanager
    async def answering(
        self, name: str, version: str, read: RequestReader
    ) -> AsyncIterator[InferAnswer]:
        """The answer to one request, while it is written. The request is read when its turn has
        come.

        Raises:
            BadRequest, NotFound, Unavailable: as `Coordinator.answering`.
            NotFiniteAnswer: classes were asked for, and their scores are none.
        """
        served = await self.model(name, version)
        read_it = partial(read, served.network.graph)
        answered_by = self.coordinator.names.public(served.source)[1]
        async with answered(self.coordinator, served, read_it) as (request, answer):
            outputs = tuple(
                (output, wanted(answer.outputs, output, self._labels(served, output.name)))
                for output in request.wanted
            )
            yield InferAnswer(request.id, name, answered_by, outputs)

    def _labels(self, served: ServedModel, output: str) -> tuple[str, ...]:
        """Names of the classes, if the output's elements are classes."""
        sidecar = served.sidecar
        if sidecar is not None and sidecar.task == "classification":
            return sidecar.labels
        return self.coordinator.names.labels(served.source, output)

    # ------------------------------------------------------------ repository and statistics

    def index(self, *, only_ready: bool) -> list[dict[str, str]]:
        """All available models, and whether they are loaded."""
        self.coordinator.names.refresh()
        known = {status.name: status for status in self.coordinator.served.statuses()}
        rows = []
        for name in self.coordinator.names.known:
            stored = self.coordinator.names.stored.get(name)
            if stored is not None and stored.problem:
                rows.append(_row(name, "1", "UNAVAILABLE", stored.problem))
                continue
            for version in self.coordinator.names.versions(name):
                source = self.coordinator.names.source(name, version)
                ready, reason = self.coordinator.served.readiness_of(source)
                if source in known:
                    state = "READY" if ready else "UNAVAILABLE"
                    rows.append(_row(name, version, state, reason))
                else:
                    rows.append({"name": name})
        for name, versions in self.coordinator.names.awaited().items():
            rows += [_row(name, version, "UNAVAILABLE", why) for version, why in versions.items()]
        return [row for row in rows if not only_ready or row.get("state") == "READY"]

    async def load(self, name: str, parameters: dict[str, Any]) -> None:
        """Loads a model, or loads it again.

        Raises:
            Unsupported: the request brings its own configuration or files.
            NotFound, BadRequest, Unavailable: as `Coordinator.load`.
        """
        if any(key == "config" or key.startswith("file:") for key in parameters):
            raise Unsupported(
                cause="models are loaded only from the coordinator's disk, unchanged",
                cure="Put the files into the model repository, and load without parameters",
            )
        self.coordinator.names.refresh()
        self.coordinator.names.source(name)
        for version in self.coordinator.names.versions(name):
            await self.coordinator.served.load(self.coordinator.names.source(name, version))
        for status in self.coordinator.served.statuses():
            if self.coordinator.names.is_replaced(status.name):
                self.coordinator.library.let_go(status.name, keep=self.coordinator.plans.in_use)

    def unload(self, name: str) -> None:
        """Unloads every version of a model.

        Raises:
            NotFound: no such model.
        """
        self.coordinator.names.source(name)
        for version in self.coordinator.names.versions(name):
            self.coordinator.library.unload(self.coordinator.names.source(name, version))

    def counts(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """Statistics of one model, or of every loaded one.

        Raises:
            NotFound: no such model or version.
        """
        self.coordinator.settle()
        names = self.coordinator.names
        if name:
            versions = [version] if version else names.versions(name)
            sources = [names.source(name, number) for number in versions or ("",)]
        else:
            sources = [status.name for status in self.coordinator.served.statuses()]
        return [self.statistics.of(source, *names.public(source)) for source in sources]


def _tensor(graph: Graph, name: str) -> dict[str, Any]:
    info = graph.tensors[name]
    return {"name": name, "datatype": datatype_of(info), "shape": list(info.told_shape)}


def _config_tensor(graph: Graph, name: str) -> dict[str, Any]:
    info = graph.tensors[name]
    datatype = datatype_of(info)
    kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    return {"name": name, "data_type": kind, "dims": list(info.told_shape)}


def _row(name: str, version: str, state: str, reason: str) -> dict[str, str]:
    return {"name": name, "version": version, "state": state, "reason": reason}
