"""Which callers a worker admits: decided before any of its methods runs; refusals are logged."""

import asyncio
import hmac
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import grpc.aio
import structlog

from protos.daemon.process_memory import Rest
from protos.rpc.serving import EXCHANGE, SERVICE, Context
from protos.trust.identity import COORDINATOR_NAME, coordinator_of, device_of

SENDER_KEY = "imbrex-sender"
SECRET_KEY = "imbrex-secret"  # noqa: S105 - the name of a metadata key
# A coordinator's id.
COORDINATOR_KEY = "imbrex-coordinator"
HOST = "host"

# The methods that a neighbour needs to send its halos; all others are the coordinator's.
_FOR_PEERS = frozenset({f"/{SERVICE}/Hello", EXCHANGE})
_HEALTH = "/grpc.health.v1."
# Calls of one device at a time: its stream, one from before a restart, and one that the doctor
# makes it try. Each may hold a message of 64 MB while it is read.
MOST_CALLS_OF_A_MEMBER = 4
# A neighbour's Hello has some dozens of bytes.
_MOST_OF_A_PEER_BYTES = 64 << 10
_NAMES_KEY = "x509_subject_alternative_name"

RpcHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour = Callable[[Any, Context], Awaitable[Any]]

if TYPE_CHECKING:
    Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    Interceptor = grpc.aio.ServerInterceptor

_log = structlog.get_logger()


class Gate(Interceptor, ABC):
    """Decides about each call before its method runs."""

    def __init__(self) -> None:
        self._rest = Rest()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[RpcHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> RpcHandler:
        """Intercepts every call."""
        handler = await continuation(handler_call_details)
        return handler if handler is None else self.guarded(handler, handler_call_details)

    @abstractmethod
    def guarded(self, handler: RpcHandler, details: grpc.HandlerCallDetails) -> RpcHandler:
        """The handler itself, or a replacement that refuses or watches the call."""

    def _refusing(self, handler: RpcHandler, method: str, why: str) -> RpcHandler:
        """A handler that refuses without reading a message."""

        async def refuse(_messages: Any, context: Context) -> None:
            self._refuse(context, method, why)

        return _streamed(handler, refuse, own_messages=True)

    def _refuse(self, context: Context, method: str, why: str) -> None:
        """Ends the call; `abort` would raise an exception that keeps it and its message alive."""
        _log.warning("caller refused", caller=context.peer(), call=method, cause=why)
        context.set_code(grpc.StatusCode.UNAUTHENTICATED)
        context.set_details(why)
        # gRPC frees what it has received of the message soon after.
        self._rest.begin()


class SecretGate(Gate):
    """Admits callers that know the cluster's secret (every caller, if it is empty); the health
    service answers without it.
    """

    def __init__(self, secret: str) -> None:
        super().__init__()
        self._secret = secret.encode()

    def guarded(self, handler: RpcHandler, details: grpc.HandlerCallDetails) -> RpcHandler:
        """Refuses callers without the secret."""
        if not self._secret or details.method.startswith(_HEALTH) or self._knows_it(details):
            return handler
        return self._refusing(handler, details.method, "the cluster secret is missing or wrong")

    def _knows_it(self, details: grpc.HandlerCallDetails) -> bool:
        sent = dict(details.invocation_metadata or ()).get(SECRET_KEY, "")
        data = sent if isinstance(sent, bytes) else sent.encode()
        return hmac.compare_digest(data, self._secret)


@dataclass(frozen=True, slots=True)
class _Caller:
    """A device or a coordinator by its id, which coordinators of older versions do not have."""

    id: str
    is_host: bool

    def __str__(self) -> str:
        return f"{'coordinator' if self.is_host else 'device'} {self.id or 'without an id'}"


class CertificateGate(Gate):
    """Admits coordinators, and members as neighbours, by the names in their certificates.

    TLS has accepted only certificates of our authority. A coordinator sets the members (`allow`):
    until then no neighbour is one. The calls of a device that is no longer a member end at once,
    and so do those of a coordinator that is no longer one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._members: frozenset[str] = frozenset()
        self._coordinators: frozenset[str] = frozenset()
        self._calls: defaultdict[_Caller, set[asyncio.Future[Any]]] = defaultdict(set)

    def allow(self, members: Iterable[str], coordinators: Iterable[str] = ()) -> None:
        """Sets the members, and the ids of the coordinators; none: any with a certificate is."""
        self._members, self._coordinators = frozenset(members), frozenset(coordinators)
        for caller in [caller for caller in self._calls if self._no_member(caller)]:
            for call in self._calls[caller]:
                call.cancel()

    def guarded(self, handler: RpcHandler, details: grpc.HandlerCallDetails) -> RpcHandler:
        """Refuses callers that are not members, and ends the calls of members that are removed."""
        method = details.method
        behaviour = _behaviour(handler)

        async def answered(caller: _Caller, messages: Any, context: Context) -> Any:
            if handler.request_streaming:
                return await behaviour(messages, context)
            message = await context.read()
            data = message if isinstance(message, bytes) else b""
            if not caller.is_host and len(data) > _MOST_OF_A_PEER_BYTES:
                self._refuse(context, method, f"{caller} sent a request of {len(data)} bytes")
                return None
            return await behaviour((handler.request_deserializer or bytes)(data), context)

        async def guarded(messages: Any, context: Context) -> Any:
            caller, objection = self._judge(method, context)
            if objection:
                self._refuse(context, method, objection)
                return None
            return await self._while_member(
                caller, answered(caller, messages, context), context, method
            )

        return _streamed(handler, guarded, own_messages=handler.request_streaming)

    def _judge(self, method: str, context: Context) -> tuple[_Caller, str]:
        """(the caller, the reason to refuse it or an empty string)."""
        names = tuple(name.decode() for name in context.auth_context().get(_NAMES_KEY, ()))
        is_host = COORDINATOR_NAME in names
        caller = _Caller(coordinator_of(names) if is_host else device_of(names), is_host)
        claimed = dict(context.invocation_metadata() or ()).get(SENDER_KEY, "")
        shown = HOST if is_host else caller.id
        if not shown:
            return caller, "its certificate is neither a worker's nor the coordinator's"
        if claimed != shown:
            return caller, f"its certificate is for {shown!r}, it says that it is {claimed!r}"
        return caller, self._no_member(caller) or self._objection(caller, method)

    def _no_member(self, caller: _Caller) -> str:
        """Why a caller does not belong to the cluster; empty if it does."""
        if caller.is_host:
            known = not self._coordinators or caller.id in self._coordinators
        else:
            known = caller.id in self._members
        return "" if known else f"{caller} is not a member of the cluster"

    def _objection(self, caller: _Caller, method: str) -> str:
        """The reason to refuse a member's call; empty if there is none."""
        if caller.is_host:
            return ""
        if method not in _FOR_PEERS and not method.startswith(_HEALTH):
            return f"{caller} may not give orders"
        if len(self._calls.get(caller, ())) >= MOST_CALLS_OF_A_MEMBER:
            return f"{caller} has {MOST_CALLS_OF_A_MEMBER} calls open already"
        return ""

    async def _while_member(
        self, caller: _Caller, work: Awaitable[Any], context: Context, method: str
    ) -> Any:
        call = asyncio.ensure_future(work)
        self._calls[caller].add(call)
        try:
            await asyncio.wait((call,))
            if not call.cancelled():
                return call.result()
            self._refuse(context, method, f"{caller} is not a member any more")
            return None
        finally:
            self._calls[caller].discard(call)
            if not self._calls[caller]:
                del self._calls[caller]
            if not call.done():
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)


def _behaviour(handler: RpcHandler) -> Behaviour:
    """The function of a handler of any kind."""
    shapes = (handler.unary_unary, handler.unary_stream, handler.stream_unary)
    return next((shape for shape in shapes if shape), handler.stream_stream)  # type: ignore[return-value]


def _streamed(handler: RpcHandler, behaviour: Behaviour, *, own_messages: bool) -> RpcHandler:
    """A copy of a handler with another function. A single message becomes a stream: gRPC would
    otherwise read all of it before the gate decides. Without `own_messages`, messages are bytes.
    """
    make: Any = (
        grpc.stream_stream_rpc_method_handler
        if handler.response_streaming
        else grpc.stream_unary_rpc_method_handler
    )
    read = handler.request_deserializer if own_messages else None
    return make(behaviour, read, handler.response_serializer)  # type: ignore[no-any-return]
