"""Two machines that answer at one address, in network namespaces, and what happens when they lose
each other, and when one dies.

Each of the two has a coordinator, HAProxy and keepalived with the configurations of deploy/haproxy,
and a server of the store; two further ones compute, and one of these has the third server. A
machine dies when its cable is pulled: nobody sends a FIN, and its connections are silent.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lab.cuts import cut, cut_peers
from benchmarks.lab.namespace import inside
from benchmarks.lab.network import Network, Wiring
from benchmarks.members import make_members
from benchmarks.pair.clients import CLIENTS, TOLERANCE, Seen
from benchmarks.pair.processes import CONFIGURATION, HAPROXY, START_S, Member, stop
from benchmarks.store import Store, Where, replaced, stored
from benchmarks.workers import WorkerProcess
from coordinator.devices import children
from coordinator.trust.authority import Authority
from imbrex.client import Client
from models.catalogue.catalogue import load
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, compare, random_inputs
from protos.errors import ImbrexError

KEEPALIVED = shutil.which("keepalived") or ""
ADDRESSES = Path(__file__).parents[2] / "deploy" / "haproxy" / "keepalived.conf"
# Within the lab's network, and of no machine.
SHARED = "10.77.0.200"
PORT, FRONT, ENROL, WORKER = 8460, 8450, 8462, 8470
# The machines of the coordinators; the third one has a worker, and the store's third server.
COORDINATORS, THIRD = (1, 2), 3
# How long nothing is harmed, and machines are apart, and dead.
_CALM_S, _APART_S, _DEAD_S = 20.0, 5.0, 10.0
CALM, HARMS = "machines_undisturbed", ("partitions", "machines")
# Until a machine that is whole again may have the address: keepalived wants two good answers.
_SETTLED_S = 3.0


@dataclass
class House:
    """The machines; the coordinators' are 1 and 2, the workers' those after them."""

    network: Network
    coordinators: tuple[Member, Member]
    workers: list[WorkerProcess]
    store: Store

    def is_whole(self, number: int) -> bool:
        """Whether a coordinator answers, with all workers."""
        return self.coordinators[number - 1].is_ready(len(self.workers))

    def whole(self) -> None:
        """Returns when both are whole, and one of them has the address."""
        for number in COORDINATORS:
            children.wait_until(
                lambda number=number: self.is_whole(number),  # type: ignore[misc]
                f"coordinator {number} is not whole",
                (),
                START_S,
            )
        children.wait_until(lambda: len(self.holders()) == 1, "two have the address", (), START_S)

    def holders(self) -> list[int]:
        """The machines that have the shared address."""
        return [
            coordinator for coordinator in COORDINATORS if SHARED in self._addresses(coordinator)
        ]

    def _addresses(self, number: int) -> str:
        command = ("ip", "-n", self.network.device(number), "-4", "address", "show", "eth0")
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def house(folder: Path, model: str, pace: float, computing: int = 2) -> Iterator[House]:
    """All machines, `computing` of them with workers, whole; this thread is beside them."""
    network = Network(Wiring(len(COORDINATORS) + computing, "switch", 940.0))
    first, second = folder / "pi-1", folder / "pi-2"
    numbers = range(THIRD, THIRD + computing)
    with ExitStack() as stack:
        network.build()
        stack.callback(network.remove)
        stack.enter_context(inside(network.host))
        workers = [_worker(network, which, folder, pace) for which in numbers]
        make_members(first, [worker.folder for worker in workers])
        authority = Authority.load(first)
        assert authority is not None
        places = [
            Where(network.address(name), 4222, 6222, network.inside(network.device(name)))
            for name in (*COORDINATORS, THIRD)
        ]
        store = stack.enter_context(stored(folder, authority=authority, places=places))
        _imbrex("cluster", "move-state", store.url, "--state-dir", str(first))
        members = (
            _coordinator(network, 1, first, model, workers),
            _coordinator(network, 2, second, model, workers),
        )
        for worker in workers:
            stack.callback(stop, worker)
        for member in members:
            stack.callback(stop, member)
        for worker in workers:
            worker.begin()
        members[0].start()
        where = f"{network.address(1)}:{ENROL}"
        invite = ("cluster", "invite", "--coordinator", "--address", where)
        token = _imbrex(*invite, "--state-dir", str(first)).strip()
        running = members[0].child
        assert running is not None
        children.wait_until(
            lambda: running.ready() is not None, "no coordinator", [running], START_S
        )
        join = ("coordinator", "--join", token, "--join-only", "--state-dir", str(second))
        _imbrex(*join, within=members[1].within)
        members[1].start()
        for number in COORDINATORS:
            _front(stack, network, number, folder, members[number - 1].within)
        made = House(network, members, workers, store)
        made.whole()
        yield made


def _imbrex(*arguments: str, within: Sequence[str] = ()) -> str:
    command = [*within, sys.executable, "-m", "imbrex", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _worker(network: Network, number: int, folder: Path, pace: float) -> WorkerProcess:
    name, within = f"worker-{number}", network.inside(network.device(number))
    return WorkerProcess(name, folder / name, pace, network.address(number), WORKER, within)


def _coordinator(
    network: Network, number: int, state: Path, model: str, workers: Sequence[WorkerProcess]
) -> Member:
    host = network.address(number)
    arguments = ["coordinator", "--host", host, "--port", str(PORT)]
    arguments += ["--no-mdns", "--state-dir", str(state), "--no-host-computes", "--no-profile"]
    arguments += ["--model", model, "--rate", "0", "--strategy", "ofl"]
    for worker in workers:
        arguments += ["--worker", worker.address]
    within = network.inside(network.device(number))
    return Member(state.name, state, arguments, PORT, host, within)


def _front(
    stack: ExitStack, network: Network, number: int, folder: Path, within: Sequence[str]
) -> None:
    """HAProxy and keepalived on a machine."""
    proxy, address = folder / f"haproxy-{number}.cfg", folder / f"keepalived-{number}.conf"
    control = folder / f"control-{number}"
    servers = {f"pi-{n}.local:8460": f"{network.address(n)}:{PORT}" for n in COORDINATORS}
    servers["/run/haproxy/imbrex.sock"] = str(control)
    proxy.write_text(replaced(CONFIGURATION.read_text(), servers))
    shared = {"192.168.1.84/24": f"{SHARED}/24", "priority 254": f"priority {255 - number}"}
    address.write_text(replaced(ADDRESSES.read_text(), shared))
    files = [f"--{kind}={folder}/{kind}-{number}" for kind in ("pid", "vrrp_pid", "checkers_pid")]
    keepalived = [KEEPALIVED, "-n", "-l", "-f", str(address), *files]
    for name, command in (("haproxy", [HAPROXY, "-f", str(proxy)]), ("keepalived", keepalived)):
        with (folder / f"{name}-{number}.log").open("wb") as log:
            process = subprocess.Popen([*within, *command], stdout=log, stderr=subprocess.STDOUT)
        stack.callback(process.wait)
        stack.callback(process.terminate)


@contextmanager
def asking(model: str) -> Iterator[Seen]:
    """Clients of ours ask meanwhile, one request after another each."""
    proto = load(model).proto
    feeds = random_inputs(load_graph(proto))
    right, seen = WholeModel(proto, 1).run(feeds), Seen()
    stop, lock = threading.Event(), threading.Lock()

    def ask() -> None:
        with Client(f"http://{SHARED}:{FRONT}") as client:
            while not stop.is_set():
                began_s, failure = time.monotonic(), ""
                is_right = True
                try:
                    found = client.outputs(model, feeds).arrays
                    is_right = compare(dict(found), right).max_rel_error <= TOLERANCE
                except ImbrexError as error:
                    failure = str(error)
                with lock:
                    took_s = time.monotonic() - began_s
                    seen.statuses[0 if failure else 200] += 1
                    seen.times.append((began_s, took_s))
                    seen.wrong += not is_right
                    if failure:
                        seen.errors.append(f"after {took_s:.1f} s: {failure}")

    threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def measure(
    folder: Path, model: str, pace: float, partitions: int, deaths: int
) -> dict[str, dict[str, Any]]:
    """The figures of machines that are left alone, that lose each other, and that die, so often
    each.
    """
    with house(folder, model, pace) as made:
        with asking(model) as calm:
            time.sleep(_CALM_S)
        parts = {CALM: calm.told()}
        if partitions:
            parts["partitions"] = _partitioned(made, model, partitions)
        if deaths:
            parts["machines"] = _deaths(made, model, deaths)
    return parts


def _partitioned(made: House, model: str, times: int) -> dict[str, Any]:
    """By turns: the coordinators' machines lose each other, so that both take the shared address;
    and each of them loses the third machine, a worker and a server of the store.
    """
    ways = (COORDINATORS, (COORDINATORS[0], THIRD), (COORDINATORS[1], THIRD))
    moments = []
    with asking(model) as seen:
        for number in range(times):
            mend = cut_peers(made.network, *ways[number % len(ways)])
            moments.append(time.monotonic())
            time.sleep(_APART_S)
            mend()
            made.whole()
    return {"times": times, **seen.told(), "takeover_s": seen.takeover_s(moments)}


def _deaths(made: House, model: str, times: int) -> dict[str, Any]:
    """The machine that has the address dies. `answered_s`: from its death to the next answer, the
    median and the worst.
    """
    answered, moments = [], []
    with asking(model) as seen:
        for _ in range(times):
            (holder,) = made.holders()
            mend, at = cut(made.network, holder), time.monotonic()
            moments.append(at)
            # What had left the machine before arrives within a tenth of a second.
            children.wait_until(
                lambda at=at: _next_answer(seen, at) is not None,  # type: ignore[misc]
                "nobody answers",
                (),
                START_S,
            )
            answered.append((_next_answer(seen, at) or at) - at)
            time.sleep(_DEAD_S)
            mend()
            made.whole()
            time.sleep(_SETTLED_S)
    answered.sort()
    told = [round(answered[len(answered) // 2], 3), round(answered[-1], 3)]
    return {
        "times": times,
        **seen.told(),
        "takeover_s": seen.takeover_s(moments),
        "answered_s": told,
    }


def _next_answer(seen: Seen, at: float) -> float | None:
    return min((b + took for b, took in list(seen.times) if b + took > at + 0.1), default=None)
