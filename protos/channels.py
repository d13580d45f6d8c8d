"""The one place where connections between daemons are made: limits, keepalive, credentials.

Whoever opens a channel or a server takes its options here, so that a change of credentials is a
change of this file. Today they are a shared cluster secret in every call's metadata; without a
secret, daemons listen on loopback only (`require_secret`).
"""

import hmac
import ipaddress
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

# gRPC's own resolver knows neither /etc/hosts aliases of NSS nor `.local` names.
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")

import grpc
import grpc.aio

from protos.endpoint import Endpoint
from protos.errors import BadConfiguration
from protos.frames import MAX_MESSAGE_BYTES

SENDER_KEY = "imbrex-sender"
SECRET_KEY = "imbrex-secret"  # noqa: S105 - the name of a metadata key
HOST = "host"

# Three lost pings are about what a worker's loss may cost; a server that sees pings more often
# than its minimum interval answers GOAWAY too_many_pings, so both sides share these values.
KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000

Options = list[tuple[str, int]]
Metadata = tuple[tuple[str, str], ...]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

if TYPE_CHECKING:
    _Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _Interceptor = grpc.aio.ServerInterceptor

_COMMON: Options = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

CHANNEL_OPTIONS: Options = [
    *_COMMON,
    # A channel of its own per call site: two users of one address must not share a connection
    # whose flow control one of them fills.
    ("grpc.use_local_subchannel_pool", 1),
    # A device that comes back is found within seconds, not after gRPC's default two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A proxy from the environment is never meant for devices of the same home.
    ("grpc.enable_http_proxy", 0),
]

SERVER_OPTIONS: Options = [
    *_COMMON,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # A second daemon on the same port must fail, not share it in silence.
    ("grpc.so_reuseport", 0),
]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, what proves that it belongs to the cluster, and what its messages cost it."""

    sender: str
    secret: str = field(default="", repr=False)
    endpoint: Endpoint = field(default_factory=Endpoint, repr=False, compare=False)

    @property
    def metadata(self) -> Metadata:
        """The metadata of every call."""
        own = ((SENDER_KEY, self.sender),)
        return (*own, (SECRET_KEY, self.secret)) if self.secret else own


def make_channel(address: str) -> grpc.aio.Channel:
    """A channel to a daemon at `host:port`; connects at the first call."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def make_server(secret: str) -> grpc.aio.Server:
    """A server that admits only callers who know the secret (everybody, where it is empty)."""
    return grpc.aio.server(interceptors=[_SecretCheck(secret)], options=SERVER_OPTIONS)


def require_secret(bind: str, secret: str) -> None:
    """Refuses to listen where others can reach us without a secret.

    Raises:
        BadConfiguration: `bind` is not a loopback address and `secret` is empty.
    """
    if secret or _is_loopback(bind):
        return
    raise BadConfiguration(
        cause=f"listening on {bind} without a cluster secret would let anybody in",
        cure="Set the same secret on every daemon, or listen on 127.0.0.1",
    )


def _is_loopback(bind: str) -> bool:
    try:
        return ipaddress.ip_address(bind.strip("[]")).is_loopback
    except ValueError:
        return bind == "localhost"


class _SecretCheck(_Interceptor):
    """Refuses every call without the secret, except those of the health service."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        if not self._secret or handler is None:
            return handler
        if handler_call_details.method.startswith("/grpc.health.v1."):
            return handler
        sent = dict(handler_call_details.invocation_metadata or ()).get(SECRET_KEY, "")
        data = sent if isinstance(sent, bytes) else sent.encode()
        return handler if hmac.compare_digest(data, self._secret) else _refusing(handler)


def _refusing(handler: Handler) -> Handler:
    """A handler of the same shape that only says no."""

    async def refuse(_request: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED,
            "the cluster secret is missing or wrong",
        )

    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse)
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler(refuse)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)
