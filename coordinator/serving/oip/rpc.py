"""`inference.GRPCInferenceService`, with gRPC's health and reflection services."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import wraps
from typing import Any

import grpc
import grpc.aio
import numpy as np
import structlog
from google.protobuf import json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection
from starlette.datastructures import Headers

from coordinator.serving.common.access import Access, asks, open_to_all, orders, shown_key
from coordinator.serving.common.keys import neighbourhood
from coordinator.serving.oip.inference_service import InferenceService
from coordinator.serving.oip.reading import SERVICE, Reading, host_of
from coordinator.serving.oip.request import (
    LONGEST_ID,
    InferAnswer,
    InferRequest,
    RequestedOutput,
    class_count,
    refuse_unsupported,
    require_inputs,
    require_outputs,
)
from coordinator.serving.oip.tensors import (
    datatype_of,
    from_bytes,
    from_values,
    name_of,
    require,
    to_bytes,
)
from coordinator.settings import CoordinatorSettings
from models.graph.graph import Graph
from models.graph.shapes import TensorInfo
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from protos.daemon.ports import listen
from protos.errors import BadRequest, ImbrexError, NotFound
from protos.rpc.channels import SERVER_OPTIONS
from protos.rpc.serving import Context
from protos.status import fail

# Time for calls in flight to finish.
DRAIN_S = 5.0
# How often the health service is updated.
HEALTH_S = 0.5
# Flow control bounds unread data to one window. gRPC limits connections only in total, so idle ones
# are closed.
_WINDOW_BYTES = 1 << 16
MOST_CONNECTIONS = 200
_FLOW = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
    ("grpc.max_concurrent_streams", 64),
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
)

log = structlog.get_logger(__name__)

# The field with a tensor's values if they are not raw bytes.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


class RpcServer:
    """The protocol's server, on its own port."""

    def __init__(
        self, service: InferenceService, access: Access, settings: CoordinatorSettings
    ) -> None:
        reading = Reading(
            access, settings.max_body_bytes, settings.max_json_bytes, settings.min_body_bytes_per_s
        )
        options = [
            *((key, value) for key, value in SERVER_OPTIONS if "message_length" not in key),
            ("grpc.max_receive_message_length", reading.most_bytes),
            ("grpc.max_send_message_length", reading.most_bytes),
            *_FLOW,
        ]
        self._service = service
        self._server = grpc.aio.server(options=options, interceptors=[reading])
        self._health = HealthServicer()
        self._watch: asyncio.Task[None] | None = None
        register: Any = inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server
        register(_Calls(service, access), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self._server)

    async def start(
        self, host: str, port: int, credentials: grpc.ServerCredentials | None = None
    ) -> str:
        """Starts listening, with TLS if there are credentials; returns `host:port`.

        Raises:
            BadConfiguration: the port is taken.
        """
        shown = f"[{host}]" if ":" in host else host
        taken = listen(self._server, host, port, ("--host", "--grpc-port"), credentials)
        await self._update_health()
        await self._server.start()
        self._watch = asyncio.create_task(self._keep_health())
        return f"{shown}:{taken}"

    async def stop(self) -> None:
        """Lets calls in flight finish for a while, then ends them."""
        if self._watch is not None:
            self._watch.cancel()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(DRAIN_S)

    async def _keep_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_S)
            await self._update_health()

    async def _update_health(self) -> None:
        """Reports `serving` only while requests can be answered."""
        states = health_pb2.HealthCheckResponse
        state = states.SERVING if self._service.ready() else states.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, state)


def _answered(call: Callable[["_Calls", Any], Awaitable[Any]]) -> Any:
    """A call whose errors become statuses, faults inside imbrex without their details."""

    @wraps(call)
    async def answer(calls: "_Calls", request: Any, context: Context) -> Any:
        try:
            return await call(calls, request)
        except ImbrexError as error:
            fail(context, error)
        except Exception as fault:
            log.error("call failed", exc_info=fault)
            cause, cure = "something went wrong inside imbrex", "See the coordinator's log"
            fail(context, ImbrexError(cause=cause, cure=cure))
        return None

    return answer


class _Calls(inference_pb2_grpc.GRPCInferenceServiceServicer):
    """The calls by their published names; `InferenceService` does the work."""

    def __init__(self, service: InferenceService, access: Access) -> None:
        self._service = service
        self._access = access

    @open_to_all
    async def ServerLive(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Tells that this process answers."""
        return pb.ServerLiveResponse(live=True)

    @open_to_all
    async def ServerReady(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Tells whether every configured model is ready."""
        return pb.ServerReadyResponse(ready=self._service.ready())

    @asks
    @_answered
    async def ModelReady(self, request: Any) -> Any:  # noqa: N802
        """Tells whether a model is ready."""
        try:
            found = self._service.model_ready(request.name, request.version)
        except NotFound:  # as Triton, of which clients ask until it is
            found = False
        return pb.ModelReadyResponse(ready=found)

    @asks
    async def ServerMetadata(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Describes this server."""
        return pb.ServerMetadataResponse(**self._service.server())

    @asks
    @_answered
    async def ModelMetadata(self, request: Any) -> Any:  # noqa: N802
        """A model's versions and tensors."""
        found = await self._service.metadata(request.name, request.version)
        return json_format.ParseDict(found, pb.ModelMetadataResponse())

    @asks
    @_answered
    async def ModelConfig(self, request: Any) -> Any:  # noqa: N802
        """A model's configuration."""
        found = await self._service.config(request.name, request.version)
        return pb.ModelConfigResponse(config=json_format.ParseDict(found, pb.ModelConfig()))

    @asks
    @_answered
    async def ModelInfer(self, request: Any) -> Any:  # noqa: N802
        """Computes the outputs for input tensors."""
        return await self._infer(request)

    @asks
    async def ModelStreamInfer(  # noqa: N802
        self, request_iterator: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        """One answer for each request, in order; an error ends only its own request."""
        async for request in request_iterator:
            try:
                self._count(context)
                answer = await self._infer(request)
                yield pb.ModelStreamInferResponse(infer_response=answer)
            except ImbrexError as error:
                failed = pb.ModelInferResponse(id=request.id, model_name=request.model_name)
                yield pb.ModelStreamInferResponse(error_message=str(error), infer_response=failed)

    @asks
    @_answered
    async def ModelStatistics(self, request: Any) -> Any:  # noqa: N802
        """Counts of a model, or of all, since the start."""
        rows = self._service.counts(request.name, request.version)
        return json_format.ParseDict({"model_stats": rows}, pb.ModelStatisticsResponse())

    @asks
    @_answered
    async def RepositoryIndex(self, request: Any) -> Any:  # noqa: N802
        """Lists all available models."""
        rows = self._service.index(only_ready=request.ready)
        return json_format.ParseDict({"models": rows}, pb.RepositoryIndexResponse())

    @orders
    @_answered
    async def RepositoryModelLoad(self, request: Any) -> Any:  # noqa: N802
        """Loads a model, or loads it again."""
        await self._service.load(request.model_name, dict(request.parameters))
        return pb.RepositoryModelLoadResponse()

    @orders
    @_answered
    async def RepositoryModelUnload(self, request: Any) -> Any:  # noqa: N802
        """Unloads a model until it is loaded again."""
        self._service.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    async def _infer(self, message: Any) -> Any:
        unread = [message]  # so that `read` can drop the message once its tensors are read

        def read(graph: Graph) -> InferRequest:
            return _read_request(unread.pop(), graph)

        asked = message.model_name, message.model_version
        async with self._service.answering(*asked, read) as answer:
            return await asyncio.to_thread(_write_answer, answer)

    def _count(self, context: Context) -> None:
        """Counts one request.

        Raises:
            TooManyRequests: its caller sends requests too often.
        """
        sent = {key: str(value) for key, value in context.invocation_metadata() or ()}
        self._access.count(shown_key(Headers(sent)), neighbourhood(host_of(context.peer())))


def _read_request(message: pb.ModelInferRequest, graph: Graph) -> InferRequest:
    """An inference request.

    Raises:
        BadRequest: it violates the protocol, or does not fit the model's inputs.
        Unsupported: it asks for shared memory or sequences.
    """
    refuse_unsupported(_plain(message.parameters))
    if len(message.id) > LONGEST_ID:
        raise BadRequest(cause="'id' is too long", cure="Send a short one")
    names = [tensor.name for tensor in message.inputs]
    require_inputs(names, graph)
    raw = message.raw_input_contents
    if raw and len(raw) != len(names):
        raise BadRequest(
            cause=f"there are {len(raw)} raw_input_contents for {len(names)} inputs",
            cure="Send one for each input in order, or none at all",
        )
    feeds = {
        tensor.name: _input(tensor, raw[index] if raw else None, graph.tensors[tensor.name])
        for index, tensor in enumerate(message.inputs)
    }
    wanted = tuple(_output(output) for output in message.outputs) or tuple(
        RequestedOutput(name, binary=True) for name in graph.outputs
    )
    require_outputs(wanted, graph)
    return InferRequest(message.id, feeds, wanted)


def _write_answer(answer: InferAnswer) -> pb.ModelInferResponse:
    """The answer, with every output as raw bytes."""
    message = pb.ModelInferResponse(
        model_name=answer.model, model_version=answer.version, id=answer.id
    )
    for output, array in answer.outputs:
        message.outputs.add(name=output.name, datatype=name_of(array), shape=array.shape)
        message.raw_output_contents.append(to_bytes(array))
    return message


def _input(
    entry: pb.ModelInferRequest.InferInputTensor, raw: bytes | None, info: TensorInfo
) -> np.ndarray:
    refuse_unsupported(_plain(entry.parameters))
    require(entry.name, entry.datatype, entry.shape[: len(info.shape) + 1], info)
    if raw is not None:
        if entry.HasField("contents"):
            raise BadRequest(
                cause=f"the input {entry.name!r} has both contents and raw_input_contents",
                cure="Send one of them",
            )
        return from_bytes(entry.name, raw, info)
    field = _CONTENTS.get(datatype_of(info))
    if field is None:
        raise BadRequest(
            cause=f"the input {entry.name!r} is {entry.datatype}, which contents cannot hold",
            cure="Send raw_input_contents",
        )
    values = getattr(entry.contents, field)
    if len(values) != math.prod(info.shape):
        raise BadRequest(
            cause=f"the input {entry.name!r} has {len(values)} {field}",
            cure=f"{entry.datatype} {list(info.shape)} takes {math.prod(info.shape)}",
        )
    return from_values(entry.name, np.array(values), info)


def _output(entry: pb.ModelInferRequest.InferRequestedOutputTensor) -> RequestedOutput:
    parameters = _plain(entry.parameters)
    refuse_unsupported(parameters)
    return RequestedOutput(
        entry.name, binary=True, classes=class_count(parameters.get("classification"))
    )


def _plain(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "bool_param")
        for key, value in parameters.items()
    }
