"""The one place where connections between daemons are made: limits, keepalive, credentials.

Every channel and server takes its options from here, so a change of credentials changes only this
file. Daemons authenticate with certificates of their cluster's authority or, in the simplest
set-ups, with a secret that all of them share; with neither, they listen on loopback only
(`require_proof`).
"""

import ipaddress
import os
import socket
from dataclasses import dataclass, field

# gRPC's own resolver knows neither /etc/hosts aliases of NSS nor `.local` names.
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")
# gRPC's newer event engine passes each message through its own threads: with the older engine and
# uvloop, a small message costs each side a third less CPU (benchmarks/messages.py).
os.environ.setdefault(
    "GRPC_EXPERIMENTS",
    "-event_engine_client,-event_engine_listener,-event_engine_fork,"
    "-event_engine_for_all_other_endpoints",
)

import grpc
import grpc.aio

from protos.errors import BadConfiguration
from protos.rpc.gates import (
    COORDINATOR_KEY,
    HOST,
    SECRET_KEY,
    SENDER_KEY,
    CertificateGate,
    Gate,
    SecretGate,
)
from protos.trust.credentials import Credentials
from protos.trust.identity import WORKER_NAME
from protos.wire.endpoint import Endpoint
from protos.wire.frames import MAX_MESSAGE_BYTES

__all__ = [
    "CHANNEL_OPTIONS",
    "COORDINATOR_KEY",
    "HOST",
    "KEEPALIVE_MS",
    "SENDER_KEY",
    "SERVER_OPTIONS",
    "Caller",
    "make_channel",
    "make_gate",
    "make_server",
    "pinned_channel",
    "require_proof",
]

# A lost worker should be noticed within about three pings; a server that sees pings more often than
# its minimum interval answers GOAWAY too_many_pings, so both sides share these values.
KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000

# Any address outside this network: connecting a datagram socket sends nothing [RFC 5737].
ELSEWHERE = ("192.0.2.1", 9)

Options = list[tuple[str, int]]
Metadata = tuple[tuple[str, str], ...]

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
    # One channel per call site: two users of one address must not share a connection, as one of
    # them could exhaust its flow control.
    ("grpc.use_local_subchannel_pool", 1),
    # A device that comes back is found within seconds, not after gRPC's default two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A proxy set in the environment is never meant for devices of the same network.
    ("grpc.enable_http_proxy", 0),
]

SERVER_OPTIONS: Options = [
    *_COMMON,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # A second daemon on the same port must fail, not share it silently.
    ("grpc.so_reuseport", 0),
]


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller's identity, the proof that it belongs to the cluster, and the cost of its
    messages. The proof is the credentials, else the secret; with credentials, the secret is never
    sent. `coordinator` is how a host identifies itself: an id, a space and a display name;
    `incarnation` is new at each of its starts.
    """

    sender: str
    secret: str = field(default="", repr=False)
    endpoint: Endpoint = field(default_factory=Endpoint, repr=False, compare=False)
    credentials: Credentials | None = None
    coordinator: str = ""
    incarnation: str = ""

    @property
    def metadata(self) -> Metadata:
        """The metadata of every call."""
        own: Metadata = ((SENDER_KEY, self.sender),)
        if self.coordinator:
            own = (*own, (COORDINATOR_KEY, self.coordinator.partition(" ")[0]))
        if self.secret and self.credentials is None:
            return (*own, (SECRET_KEY, self.secret))
        return own


def make_channel(
    address: str, credentials: Credentials | None = None, name: str = WORKER_NAME
) -> grpc.aio.Channel:
    """A channel to a daemon at `host:port`; connects at the first call. With credentials, the
    daemon that answers must have a certificate for `name`.
    """
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return pinned_channel(address, credentials.of_channel(), name)


def pinned_channel(
    address: str, credentials: grpc.ChannelCredentials, name: str
) -> grpc.aio.Channel:
    """A TLS channel to a server whose certificate is for `name`."""
    options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", name)]
    return grpc.aio.secure_channel(address, credentials, options=options)


def make_gate(secret: str, credentials: Credentials | None) -> Gate:
    """Authenticates callers by certificate if this daemon has one, else by the secret."""
    return SecretGate(secret) if credentials is None else CertificateGate()


def make_server(gate: Gate) -> grpc.aio.Server:
    """A server that accepts the calls that its gate admits."""
    return grpc.aio.server(interceptors=[gate], options=SERVER_OPTIONS)


def require_proof(bind: str, secret: str, credentials: Credentials | None) -> None:
    """Refuses to listen beyond loopback unless callers must authenticate.

    Raises:
        BadConfiguration: `bind` is not a loopback address, and there is neither a certificate nor
            a secret.
    """
    if secret or credentials is not None or is_loopback(bind):
        return
    raise BadConfiguration(
        cause=f"listening on {bind} without a certificate or a cluster secret would admit any "
        "caller",
        cure="Enrol this device (`imbrex cluster invite` on the coordinator prints a token for "
        "`imbrex worker --join`), or listen on 127.0.0.1",
    )


def is_loopback(host: str) -> bool:
    """Whether the address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def address_towards(host: str, port: int) -> str:
    """This machine's address as it appears to another one. Nothing is sent.

    Raises:
        OSError: there is no way to it.
    """
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
