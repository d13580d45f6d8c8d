"""Real servers of NATS with JetStream, on loopback."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import nats
from nats.js import JetStreamContext

from coordinator.devices.children import wait_until
from coordinator.trust.authority import Authority
from protos.rooms import imported
from protos.trust.identity import keep_identity, now_utc

SERVER = shutil.which("nats-server") or ""
START_S = 60.0
CONFIGURATION = Path(__file__).parent.parent / "deploy" / "nats" / "nats-server.conf"
# Those of the configuration.
_DEVICES = ("pi-1", "pi-2", "pi-3")
_PORTS = (15_000, 32_000)
_GIVEN: set[int] = set()
# Where coordinators keep the state; what starts servers needs no package for several of them.
_STORE = "coordinator.several.nats_store"

T = TypeVar("T")


@dataclass
class Node:
    """One server; it keeps what it stores over a restart."""

    name: str
    folder: Path
    text: str
    address: str
    within: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Starts it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "nats.conf"
        config.write_text(self.text)
        log = (self.folder / "log.txt").open("ab")
        with log:
            self.process = subprocess.Popen(
                [*self.within, SERVER, "-c", str(config)], stdout=log, stderr=subprocess.STDOUT
            )

    def kill(self) -> None:
        """Kills it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def pause(self) -> None:
        """It stands still, and so do its connections."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """It goes on after `pause`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@dataclass
class Store:
    """Servers of one store."""

    nodes: list[Node]
    scheme: str = "nats"
    credentials: str = ""

    @property
    def url(self) -> str:
        """What coordinators are told."""
        return f"{self.scheme}://" + ",".join(
            f"{self.credentials}{node.address}" for node in self.nodes
        )

    def put(self, value: bytes) -> int:
        """Writes the value of the cluster's state, as anybody could who may."""

        async def put(stream: JetStreamContext) -> int:
            bucket, key = (imported(f"{_STORE}:{name}") for name in ("BUCKET", "KEY"))
            return await (await stream.key_value(bucket)).put(key, value)

        return asyncio.run(self._asked(put))

    def leader(self) -> Node:
        """Which of several servers leads the others in keeping the cluster's state."""

        async def name(stream: JetStreamContext) -> str | None:
            bucket = imported(f"{_STORE}:BUCKET")
            cluster = (await stream.stream_info(f"KV_{bucket}")).cluster
            return None if cluster is None else cluster.leader

        leader = asyncio.run(self._asked(name))
        return next(node for node in self.nodes if node.name == leader)

    async def _asked(self, ask: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        client = await nats.connect(f"nats://{self.nodes[0].address}")
        try:
            return await ask(client.jetstream())
        finally:
            await client.close()

    def log(self) -> str:
        """What its servers have said."""
        return "".join((node.folder / "log.txt").read_text() for node in self.nodes)


def free_port() -> int:
    """A port of loopback that nobody listens on now, another one each time. It is below those that
    the kernel gives away itself, which another process could get before it is used.
    """
    while True:
        port = random.randrange(*_PORTS)
        if port not in _GIVEN:
            with suppress(OSError), socket.create_server(("127.0.0.1", port)):
                _GIVEN.add(port)
                return port


@dataclass(frozen=True, slots=True)
class Where:
    """Where a server runs: its ports for coordinators and for the other servers, and the command
    that runs it there.
    """

    host: str
    port: int
    routes: int
    within: tuple[str, ...] = ()

    @classmethod
    def here(cls) -> Where:
        """On loopback."""
        return cls("127.0.0.1", free_port(), free_port())

    @property
    def address(self) -> str:
        """For coordinators."""
        return f"{self.host}:{self.port}"


@contextmanager
def stored(
    folder: Path,
    count: int = 1,
    extra: str = "",
    authority: Authority | None = None,
    credentials: str = "",
    places: Sequence[Where] = (),
) -> Iterator[Store]:
    """`count` servers, by default on loopback, with this `extra` text in their configuration; with
    TLS if there is an authority. Three with TLS have the configuration that we ship.
    """
    at = places or [Where.here() for _ in range(count)]
    nodes = []
    for number, where in enumerate(at):
        own = folder / f"nats-{number + 1}"
        own.mkdir(parents=True)
        if authority is not None:
            keep_identity(own / "nats.pem", authority.for_store([where.host], now_utc()))
        shipped = authority is not None and len(at) == len(_DEVICES)
        text = _shipped(own, number, at) if shipped else _small(own, number, at, authority)
        nodes.append(Node(f"n{number + 1}", own, text + extra, where.address, where.within))
    store = Store(nodes, "nats" if authority is None else "tls", credentials)
    try:
        for node in nodes:
            node.start()
        wanted = "JetStream cluster new metadata leader" if len(at) > 1 else "Server is ready"
        wait_until(lambda: wanted in store.log(), "the store does not start", (), START_S)
        yield store
    finally:
        for node in nodes:
            if node.process is not None:
                node.go_on()
                node.kill()


def _small(own: Path, number: int, at: Sequence[Where], authority: Authority | None) -> str:
    where = at[number]
    text = f'server_name: "n{number + 1}"\nlisten: "{where.address}"\n'
    text += f'jetstream {{ store_dir: "{own}/data", max_mem: 16MB, max_file: 64MB }}\n'
    if len(at) > 1:
        routes = ", ".join(f'"nats://{server.host}:{server.routes}"' for server in at)
        text += f'cluster {{ name: home, listen: "{where.host}:{where.routes}", '
        text += f"routes: [{routes}] }}\n"
    if authority is not None:
        files = ", ".join(f'{kind}_file: "{own}/nats.pem"' for kind in ("cert", "key", "ca"))
        text += f"tls {{ {files}, verify_and_map: true, timeout: 5 }}\n"
        text += 'authorization { users: [{ user: "coordinator.imbrex.internal" }] }\n'
    return text


def _shipped(own: Path, number: int, at: Sequence[Where]) -> str:
    """The configuration that we ship, for one of its three servers."""
    where = at[number]
    return replaced(
        CONFIGURATION.read_text(),
        {
            f'server_name: "{_DEVICES[0]}"': f'server_name: "n{number + 1}"',
            "0.0.0.0:4222": where.address,
            "0.0.0.0:6222": f"{where.host}:{where.routes}",
            "127.0.0.1:8222": "127.0.0.1:-1",
            "/var/lib/imbrex/store": f"{own}/data",
            "/etc/nats-server/imbrex.pem": f"{own}/nats.pem",
            **{
                f"{name}.local:6222": f"{server.host}:{server.routes}"
                for name, server in zip(_DEVICES, at, strict=True)
            },
        },
    )


def replaced(text: str, meant: Mapping[str, str]) -> str:
    """A configuration that we ship, with what a home changes in it."""
    for written, instead in meant.items():
        assert written in text, written
        text = text.replace(written, instead)
    return text
