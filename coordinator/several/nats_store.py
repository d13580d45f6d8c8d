"""The store of the cluster's state: a key-value bucket of NATS JetStream, and the connection to it.

Consensus, replication and watching are the store's.
"""

import asyncio
import logging
import secrets
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NothingNew
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.errors import APIError, BucketNotFoundError, ServiceUnavailableError
from nats.js.kv import KeyValue

from coordinator.several.shared_value import MOST_BYTES
from protos.daemon.urls import shown
from protos.errors import BadConfiguration, BadRequest, PeerViolation
from protos.rpc.channels import is_loopback
from protos.trust.identity import read_identity

BUCKET = "imbrex"
KEY = "state"
# As many as survive the loss of one; the store needs more than half of them for a change.
REPLICAS = 3
# Earlier values are for people who look for a mistake.
HISTORY = 8

CALL_S = 2.0
# How often servers that elect a leader are asked again.
_ELECTING_S = 0.2
# Servers that have just started, or lost one of them, meet within seconds; until then they have no
# leader, no peers for copies, or no answer.
MEETING_S = 20.0
_NO_PEERS = 10005

# The library changes a plain stream into one with TLS; asyncio then warns at the end of each.
logging.getLogger("asyncio").addFilter(lambda told: "eof_received" not in told.getMessage())


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where the store is: `nats://HOST:PORT[,HOST:PORT...]`, with the cluster's TLS unless all of
    them are this machine; `tls://` uses it there, too.
    """

    url: str

    @property
    def servers(self) -> list[str]:
        """Its servers, each as a URL.

        Raises:
            BadRequest: the URL is invalid.
        """
        scheme, found, rest = self.url.partition("://")
        servers = [f"{scheme}://{server.strip()}" for server in rest.split(",")]
        try:
            good = all(urlsplit(server).hostname and urlsplit(server).port for server in servers)
        except ValueError:
            good = False
        if not found or scheme not in ("nats", "tls") or not good:
            raise BadRequest(
                cause=f"{self.without_password!r} does not say where the cluster's state is",
                cure="Write it as nats://HOST:PORT, with all servers: nats://A:4222,B:4222,C:4222",
            )
        return servers

    @property
    def is_secured(self) -> bool:
        """Whether its servers have certificates of the cluster's authority."""
        hosts = [urlsplit(server).hostname or "" for server in self.servers]
        return self.url.startswith("tls:") or not all(map(is_loopback, hosts))

    @property
    def without_password(self) -> str:
        """The URL for logs and errors."""
        scheme, found, rest = self.url.partition("://")
        hosts = (shown(f"{scheme}://{server.strip()}", port=True) for server in rest.split(","))
        return f"{scheme}{found}{','.join(host.partition('://')[2] for host in hosts)}"


class StoreConnection:
    """A connection to the servers at an address. `identity_path` is the coordinator's certificate
    and key, for addresses that are secured. All of it belongs to one event loop.
    """

    def __init__(self, address: StoreAddress, identity_path: Path) -> None:
        self.address = address
        self._identity_path = identity_path
        self._client: Client | None = None
        self._bucket: KeyValue | None = None
        self._turn = secrets.randbelow(REPLICAS)
        self._connecting = asyncio.Lock()

    async def opened(self, *, create: bool = False) -> KeyValue:
        """The bucket, over a connection that stands."""
        async with self._connecting:
            if self._client is None or not self._client.is_connected:
                await self.hang_up()
                self._client = await self._connected()
            if self._bucket is None:
                store = self._client.jetstream(timeout=CALL_S)
                self._bucket = await (self._made(store) if create else store.key_value(BUCKET))
            return self._bucket

    async def read(self, *, patiently: bool = True) -> tuple[KeyValue, KeyValue.Entry]:
        """The bucket and the present value; of another server if the present one is silent. While
        the servers elect a leader, which takes them seconds, it waits if it is to be patient.
        """
        silent = False
        while True:
            try:
                bucket = await self.opened()
                return bucket, await bucket.get(KEY)
            except ServiceUnavailableError:
                if not patiently:
                    raise
                await asyncio.sleep(_ELECTING_S)
            except NothingNew:
                await self.hang_up()
                if silent:
                    raise
                silent = True

    async def hang_up(self) -> None:
        """Closes the connection, if there is one."""
        client, self._client, self._bucket = self._client, None, None
        if client is not None:
            with suppress(NatsError, OSError, TimeoutError):
                await client.close()

    async def _made(self, store: JetStreamContext) -> KeyValue:
        """The bucket, made if there is none: once the servers have met, and have a leader."""
        config = KeyValueConfig(
            BUCKET,
            history=HISTORY,
            max_bytes=2 * HISTORY * MOST_BYTES,
            max_value_size=MOST_BYTES,
            replicas=REPLICAS if len(self.address.servers) >= REPLICAS else 1,
        )
        until_s = time.monotonic() + MEETING_S
        while True:
            try:
                with suppress(BucketNotFoundError):
                    return await store.key_value(BUCKET)
                return await store.create_key_value(config)
            except (APIError, NothingNew) as error:
                is_final = (
                    isinstance(error, APIError)
                    and not isinstance(error, ServiceUnavailableError)
                    and error.err_code != _NO_PEERS
                )
                if is_final or time.monotonic() > until_s:
                    raise
            await asyncio.sleep(_ELECTING_S)

    async def _connected(self) -> Client:
        """A connection to a server that answers, each time another one first."""
        context = self._tls() if self.address.is_secured else None
        servers = self.address.servers
        self._turn += 1
        failure: BaseException = OSError("no server is named")
        for number in range(len(servers)):
            try:
                return await _connection(servers[(self._turn + number) % len(servers)], context)
            except (NatsError, OSError, PeerViolation) as error:
                failure = error
        raise failure

    def _tls(self) -> ssl.SSLContext:
        path = self._identity_path
        identity = read_identity(path)
        if identity is None:
            raise BadConfiguration(
                cause=f"{path} is missing: without it no server of the cluster's state answers",
                cure="Start the coordinator once, or join the cluster again",
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=identity.authority_pem.decode())
        context.load_cert_chain(path)
        return context


async def _connection(server: str, context: ssl.SSLContext | None) -> Client:
    """A connection to one server, over TLS if there is a context.

    Raises:
        PeerViolation: it speaks plain text.
        NatsError, OSError: it does not answer, or refuses.
    """
    client = Client()
    try:
        await client.connect(
            server,
            tls=context,
            allow_reconnect=False,
            # It is tried once more than this, each time for half of the time.
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=CALL_S / 2,  # type: ignore[arg-type, unused-ignore]
            error_cb=_ignored,
            name="imbrex coordinator",
        )
        if context is not None and not client._server_info.get("tls_required"):
            raise PeerViolation(
                cause=f"{urlsplit(server).hostname} speaks plain text",
                cure="Give its server a certificate of the cluster's authority",
            )
    except BaseException:
        # The library leaves the socket open.
        if client._transport is not None:
            client._transport.close()  # type: ignore[no-untyped-call]
        with suppress(NatsError, OSError):
            await client.close()
        raise
    return client


async def _ignored(_error: Exception) -> None:
    """Errors of a connection are those of its calls, too."""
