"""Two coordinators, three servers of NATS, workers and HAProxy on this machine, all with TLS."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from benchmarks.members import make_members
from benchmarks.store import Store, free_port, replaced, stored
from benchmarks.workers import WorkerProcess
from coordinator.devices import children
from coordinator.trust.authority import Authority
from coordinator.trust.open_state import JOIN, MOVE
from coordinator.trust.trust import Trust
from models.catalogue.installed import VARIABLE
from protos.rooms import imported

HAPROXY = shutil.which("haproxy") or ""
CONFIGURATION = Path(__file__).parents[2] / "deploy" / "haproxy" / "pair.cfg"
NAMES = ("pi-1", "pi-2")
START_S = 90.0
# Calls while the benchmark waits for a process to start.
_LOOK_S = 3.0


@dataclass
class Member:
    """A daemon that can be killed and started again at its port. `within` is a command that
    executes another, as `ip netns exec` does.
    """

    name: str
    state: Path
    arguments: list[str]
    port: int
    host: str = "127.0.0.1"
    within: Sequence[str] = ()
    child: children.Child | None = field(default=None, repr=False)

    @property
    def models(self) -> Path:
        """Its folder of models."""
        return self.state.parent / f"{self.name}-models"

    @property
    def url(self) -> str:
        """Where it answers without HAProxy."""
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        """Starts it; it is used when it is ready."""
        (self.state / "ready.json").unlink(missing_ok=True)
        self.child = children.start(
            self.name,
            self.arguments,
            self.state.parent / f"{self.name}-log",
            self.state / "ready.json",
            (*self.within, "env", f"{VARIABLE}={self.models}"),
        )

    def restart(self) -> None:
        """Ends it as an upgrade does, and starts it again."""
        assert self.child is not None
        children.stop([self.child])
        self.start()

    def kill(self) -> None:
        """Kills it, and waits until it is gone."""
        assert self.child is not None
        self.child.process.kill()
        self.child.process.wait()

    def pause(self, *, end: bool = False) -> None:
        """It stands still, as a machine that hangs; or goes on."""
        assert self.child is not None
        self.child.process.send_signal(signal.SIGCONT if end else signal.SIGSTOP)

    def is_ready(self, workers: int | None = None) -> bool:
        """Whether it answers, with so many workers if a number is given."""
        try:
            with httpx.Client(base_url=self.url, timeout=_LOOK_S, trust_env=False) as client:
                found = client.get("/v1/devices").json()["devices"]
                ready = sum(device["state"] == "ready" for device in found)
                return workers in (None, ready) and client.get("/v2/health/ready").is_success
        except (httpx.HTTPError, ValueError, KeyError):
            return False


@dataclass
class Pair:
    """One address for two coordinators of the same workers."""

    url: str
    control: Path | None
    members: tuple[Member, Member]
    workers: list[Member]
    store: Store

    def is_up(self, name: str) -> bool:
        """Whether HAProxy, if there is one, gives this coordinator requests."""
        if self.control is None:
            return True
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(str(self.control))
            asked.sendall(b"show stat\n")
            told = b"".join(iter(lambda: asked.recv(4096), b"")).decode()
        rows = (line.split(",") for line in told.splitlines())
        return any(row[1:2] == [name] and row[17].startswith("UP") for row in rows)

    def _is_used(self, member: Member) -> bool:
        return member.is_ready(len(self.workers)) and self.is_up(member.name)

    def whole(self) -> None:
        """Returns when both coordinators have all workers, and HAProxy uses both."""
        for member in self.members:
            children.wait_until(
                partial(self._is_used, member),
                f"{member.name} is not used again",
                [member.child] if member.child else [],
                START_S,
            )


def stop(process: Member | WorkerProcess) -> None:
    """Ends it, if it was started."""
    children.stop([process.child] if process.child else [])


@contextmanager
def pair(
    folder: Path,
    model: str,
    workers: int,
    pace: float,
    servers: int = 3,
    *,
    proxied: bool = True,
) -> Iterator[Pair]:
    """Everything, started and whole; stopped at the end. Without HAProxy unless `proxied`."""
    first, second = folder / "pi-1", folder / "pi-2"
    states = [folder / f"worker-{number}" for number in range(1, workers + 1)]
    with ExitStack() as stack:
        make_members(first, states)
        authority = Authority.load(first)
        assert authority is not None
        store = stack.enter_context(stored(folder, servers, authority=authority))
        imported(MOVE)(first, store.url, replace=False)
        computing = [_worker(state, pace) for state in states]
        addresses = [f"127.0.0.1:{worker.port}" for worker in computing]
        enrol = free_port()
        members = tuple(
            _member(name, state, enrol if state == first else free_port(), model, addresses)
            for name, state in zip(NAMES, (first, second), strict=True)
        )
        for process in (*computing, *members):
            stack.callback(stop, process)
        for process in (*computing, members[0]):
            process.start()
        _joined(first, second, enrol)
        members[1].start()
        url, control = _proxy(stack, folder, members) if proxied else ("", None)
        made = Pair(url, control, (members[0], members[1]), computing, store)
        made.whole()
        yield made


def _joined(first: Path, second: Path, enrol: int) -> None:
    trust = Trust.load(first).certified
    assert trust is not None
    token = trust.invite(f"127.0.0.1:{enrol}", coordinator=True).token
    trust.state.close()
    children.wait_until(lambda: _listens(enrol), "nobody enrols coordinators", (), START_S)
    second.mkdir(parents=True, exist_ok=True)
    asyncio.run(imported(JOIN)(second, token))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _worker(state: Path, pace: float) -> Member:
    port = free_port()
    arguments = ["worker", "--name", state.name, "--no-mdns", "--port", str(port)]
    arguments += ["--state-dir", str(state), "--pace", str(pace)]
    return Member(state.name, state, arguments, port)


def _member(name: str, state: Path, enrol: int, model: str, workers: list[str]) -> Member:
    port = free_port()
    config = state.parent / f"{name}.toml"
    config.write_text(
        f'enrol_host = "127.0.0.1"\nenrol_port = {enrol}\nshare_port = {free_port()}\n'
    )
    arguments = ["coordinator", "--config", str(config), "--port", str(port), "--grpc-port", "0"]
    arguments += ["--no-mdns", "--state-dir", str(state), "--no-host-computes", "--no-profile"]
    arguments += ["--model", model, "--rate", "0", "--strategy", "ofl"]
    for address in workers:
        arguments += ["--worker", address]
    return Member(name, state, arguments, port)


def _proxy(stack: ExitStack, folder: Path, members: tuple[Member, ...]) -> tuple[str, Path]:
    port, control = free_port(), folder / "control"
    file = folder / "pair.cfg"
    file.write_text(
        replaced(
            CONFIGURATION.read_text(),
            {
                "pi-1.local:8460": f"127.0.0.1:{members[0].port}",
                "pi-2.local:8460": f"127.0.0.1:{members[1].port}",
                "bind :8450": f"bind 127.0.0.1:{port}",
                "/run/haproxy/imbrex.sock": str(control),
            },
        )
    )
    proxy = subprocess.Popen(
        [HAPROXY, "-f", str(file)], stdout=subprocess.DEVNULL, stderr=sys.stderr
    )
    stack.callback(proxy.wait)
    stack.callback(proxy.kill)
    children.wait_until(control.exists, "HAProxy does not start", (), START_S)
    return f"http://127.0.0.1:{port}", control


def shown(result: dict[str, object]) -> str:
    """A result for people."""
    return json.dumps(result, indent=1)
