"""`inference.GRPCInferenceService`, with health and reflection beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio
import structlog
from google.protobuf import json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection
from starlette.datastructures import Headers

from coordinator.keys import Keys, Role
from coordinator.serving.access import Access, shown_key
from coordinator.serving.oip.messages import read_request, write_answer
from coordinator.serving.oip.service import Service
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from protos.channels import SERVER_OPTIONS
from protos.errors import BadConfiguration, ImbrexError
from protos.gates import Gate, Handler, refusing
from protos.ports import holder_of
from protos.status import abort

SERVICE = "inference.GRPCInferenceService"
# Calls in flight may finish; then they are ended.
DRAIN_S = 5.0
# How often the health service learns whether requests can be answered.
HEALTH_S = 0.5
# A request's messages besides its tensors.
ENVELOPE_BYTES = 1 << 20
# Asked before anybody has a key, as over HTTP; and those that change something.
_OPEN = frozenset({"ServerLive", "ServerReady"})
_ADMIN = frozenset({"RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings"})

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
T = TypeVar("T")
log = structlog.get_logger(__name__)


class RpcServer:
    """The protocol on a port of its own."""

    def __init__(self, service: Service, access: Access, max_body_bytes: int) -> None:
        limit = max_body_bytes + ENVELOPE_BYTES
        options = [
            *((key, value) for key, value in SERVER_OPTIONS if "message_length" not in key),
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_send_message_length", limit),
        ]
        self._service = service
        self._server = grpc.aio.server(options=options, interceptors=[_KeyGate(access.keys)])
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
        """Listens, under TLS with credentials; returns `host:port`.

        Raises:
            BadConfiguration: the port is taken.
        """
        shown = f"[{host}]" if ":" in host else host
        try:
            if credentials is None:
                taken = self._server.add_insecure_port(f"{shown}:{port}")
            else:
                taken = self._server.add_secure_port(f"{shown}:{port}", credentials)
        except RuntimeError as error:
            holder = holder_of(port)
            raise BadConfiguration(
                cause=f"cannot listen on {shown}:{port}" + (f": {holder} does" if holder else ""),
                cure="Stop that program, or choose another port with --grpc-port.",
            ) from error
        await self._tell_health()
        await self._server.start()
        self._watch = asyncio.create_task(self._keep_health())
        return f"{shown}:{taken}"

    async def stop(self) -> None:
        """Finishes what is in flight, for a while."""
        if self._watch is not None:
            self._watch.cancel()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(DRAIN_S)

    async def _keep_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_S)
            await self._tell_health()

    async def _tell_health(self) -> None:
        """Serving only while requests can be answered."""
        states = health_pb2.HealthCheckResponse
        state = states.SERVING if self._service.ready() else states.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, state)


class _KeyGate(Gate):
    """Admits by API key, in the metadata under the names that HTTP has for it."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def guarded(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        """Refuses calls without a key that allows them."""
        service, _, call = details.method.removeprefix("/").partition("/")
        if service != SERVICE or call in _OPEN:
            return handler
        sent = {key: str(value) for key, value in details.invocation_metadata or ()}
        role = Role.ADMIN if call in _ADMIN else Role.INFER
        try:
            self._keys.require(shown_key(Headers(sent)), role)
        except ImbrexError as error:
            return refusing(handler, details.method, str(error))
        return handler


class _Calls(inference_pb2_grpc.GRPCInferenceServiceServicer):
    """The calls by their published names. Everything they do is the service's."""

    def __init__(self, service: Service, access: Access) -> None:
        self._service = service
        self._access = access

    async def ServerLive(self, request: Any, context: Context) -> Any:  # noqa: N802
        """This process answers."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Whether every configured model can be asked."""
        return pb.ServerReadyResponse(ready=self._service.ready())

    async def ModelReady(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Whether a model can be asked."""

        async def ready() -> Any:
            found = self._service.model_ready(request.name, request.version)
            return pb.ModelReadyResponse(ready=found)

        return await self._answer(context, ready)

    async def ServerMetadata(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Who answers here."""
        return pb.ServerMetadataResponse(**self._service.server())

    async def ModelMetadata(self, request: Any, context: Context) -> Any:  # noqa: N802
        """A model's versions and tensors."""

        async def told() -> Any:
            found = await self._service.metadata(request.name, request.version)
            return json_format.ParseDict(found, pb.ModelMetadataResponse())

        return await self._answer(context, told)

    async def ModelConfig(self, request: Any, context: Context) -> Any:  # noqa: N802
        """A model's configuration."""

        async def told() -> Any:
            found = await self._service.config(request.name, request.version)
            return pb.ModelConfigResponse(config=json_format.ParseDict(found, pb.ModelConfig()))

        return await self._answer(context, told)

    async def ModelInfer(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Tensors in, tensors out."""
        return await self._answer(context, lambda: self._infer(request))

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

    async def ModelStatistics(self, request: Any, context: Context) -> Any:  # noqa: N802
        """What a model, or every one, has done since the start."""

        async def told() -> Any:
            rows = self._service.counts(request.name, request.version)
            return json_format.ParseDict({"model_stats": rows}, pb.ModelStatisticsResponse())

        return await self._answer(context, told)

    async def RepositoryIndex(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Every model that could be asked."""

        async def told() -> Any:
            rows = self._service.index(only_ready=request.ready)
            return json_format.ParseDict({"models": rows}, pb.RepositoryIndexResponse())

        return await self._answer(context, told)

    async def RepositoryModelLoad(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Loads a model, or loads it anew."""

        async def load() -> Any:
            await self._service.load(request.model_name, dict(request.parameters))
            return pb.RepositoryModelLoadResponse()

        return await self._answer(context, load)

    async def RepositoryModelUnload(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Forgets a model until it is loaded again."""

        async def unload() -> Any:
            self._service.unload(request.model_name)
            return pb.RepositoryModelUnloadResponse()

        return await self._answer(context, unload)

    async def _infer(self, message: Any) -> Any:
        source, served = await self._service.model(message.model_name, message.model_version)
        request = await asyncio.to_thread(read_request, message, served.network.graph)
        answer = await self._service.infer(message.model_name, source, request)
        return await asyncio.to_thread(write_answer, answer)

    def _count(self, context: Context) -> None:
        """Takes account of one request.

        Raises:
            TooManyRequests: its caller asks too often.
        """
        sent = {key: str(value) for key, value in context.invocation_metadata() or ()}
        self._access.count(shown_key(Headers(sent)), _host(context.peer()))

    async def _answer(self, context: Context, call: Callable[[], Awaitable[T]]) -> T:
        """The call's answer; our errors as statuses, faults of ours without their details."""
        try:
            self._count(context)
            return await call()
        except ImbrexError as error:
            await abort(context, error)
        except Exception as fault:
            log.error("call failed", exc_info=fault)
            cause, cure = "something went wrong inside imbrex", "See the coordinator's log"
            await abort(context, ImbrexError(cause=cause, cure=cure))


def _host(peer: str) -> str:
    """The address in gRPC's `ipv4:127.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
    return unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")
