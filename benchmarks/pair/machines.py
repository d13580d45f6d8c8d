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

import httpx

from benchmarks.lab.cuts import cut, cut_peers
from benchmarks.lab.namespace import inside
from benchmarks.lab.network import Network, Wiring
from benchmarks.members import make_members
from benchmarks.pair.clients import CLIENTS, TOLERANCE, Seen
from benchmarks.pair.processes import CONFIGURATION, HAPROXY, START_S
from benchmarks.store import Where, replaced, stored
from coordinator.cluster import children
from coordinator.cluster.authority import Authority
from imbrex.client import Client
from models.catalogue import load
from models.importer import load_graph
from models.installed import VARIABLE
from models.reference import WholeModel, compare, random_inputs
from protos.errors import ImbrexError

KEEPALIVED = shutil.which("keepalived") or ""
ADDRESSES = Path(__file__).parents[2] / "deploy" / "haproxy" / "keepalived.conf"
# Within the lab's network, and of no machine.
SHARED = "10.77.0.200"
PORT, FRONT, ENROL, WORKER = 8460, 8450, 8462, 8470
_COORDINATORS, _WORKERS = (1, 2), (3, 4)
_LOOK_S = 2.0
# Before anything is harmed; how long machines are apart, and dead.
_CALM_S, _APART_S, _DEAD_S = 5.0, 5.0, 10.0
# Until a machine that is whole again may have the address: keepalived wants two good answers.
_SETTLED_S = 3.0


@dataclass
class House:
    """The machines; addresses are the network's, 1 and 2 are the coordinators'."""

    network: Network
    model: str

    def is_whole(self, number: int) -> bool:
        """Whether a coordinator answers, with all workers."""
        try:
            url = f"http://{self.network.address(number)}:{PORT}"
            with httpx.Client(base_url=url, timeout=_LOOK_S, trust_env=False) as client:
                found = client.get("/v1/devices").json()["devices"]
                ready = sum(each["state"] == "ready" for each in found)
                return ready == len(_WORKERS) and client.get("/v2/health/ready").is_success
        except (httpx.HTTPError, ValueError, KeyError):
            return False

    def whole(self) -> None:
        """Returns when both are whole, and one of them has the address."""
        for number in _COORDINATORS:
            children.wait_until(
                lambda number=number: self.is_whole(number),  # type: ignore[misc]
                f"coordinator {number} is not whole",
                (),
                START_S,
            )
        children.wait_until(lambda: len(self.holders()) == 1, "two have the address", (), START_S)

    def holders(self) -> list[int]:
        """The machines that have the shared address."""
        return [each for each in _COORDINATORS if SHARED in self._addresses(each)]

    def _addresses(self, number: int) -> str:
        command = ("ip", "-n", self.network.device(number), "-4", "address", "show", "eth0")
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def house(folder: Path, model: str, pace: float) -> Iterator[House]:
    """All machines, whole."""
    network = Network(Wiring(4, "switch", 940.0))
    states = {each: folder / f"worker-{each}" for each in _WORKERS}
    with ExitStack() as stack:
        network.build()
        stack.callback(network.remove)
        stack.enter_context(inside(network.host))
        within = {each: network.inside(network.device(each)) for each in range(1, 5)}
        first, second = folder / "pi-1", folder / "pi-2"
        make_members(first, list(states.values()))
        authority = Authority.load(first)
        assert authority is not None
        servers = (*_COORDINATORS, _WORKERS[0])
        places = [Where(network.address(each), 4222, 6222, within[each]) for each in servers]
        store = stack.enter_context(stored(folder, authority=authority, places=places))
        _imbrex("cluster", "move-state", store.url, "--state-dir", str(first))
        workers = [_worker(network, each, states[each], pace, within[each]) for each in _WORKERS]
        stack.callback(children.stop, workers)
        daemons = [_coordinator(network, 1, first, model, within[1])]
        stack.callback(children.stop, daemons)
        where = f"{network.address(1)}:{ENROL}"
        invite = ("cluster", "invite", "--coordinator", "--address", where)
        token = _imbrex(*invite, "--state-dir", str(first)).strip()
        children.wait_until(
            lambda: daemons[0].ready() is not None, "no coordinator", daemons, START_S
        )
        join = ("coordinator", "--join", token, "--join-only", "--state-dir", str(second))
        _imbrex(*join, within=within[2])
        daemons.append(_coordinator(network, 2, second, model, within[2]))
        for number in _COORDINATORS:
            _front(stack, network, number, folder, within[number])
        made = House(network, model)
        made.whole()
        yield made


def _imbrex(*arguments: str, within: Sequence[str] = ()) -> str:
    command = [*within, sys.executable, "-m", "imbrex", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _worker(
    network: Network, number: int, state: Path, pace: float, within: Sequence[str]
) -> children.Child:
    arguments = ["worker", "--name", state.name, "--no-mdns", "--state-dir", str(state)]
    arguments += ["--host", network.address(number), "--port", str(WORKER), "--pace", str(pace)]
    return children.start(state.name, arguments, state, state / "ready.json", within)


def _coordinator(
    network: Network, number: int, state: Path, model: str, within: Sequence[str]
) -> children.Child:
    arguments = ["coordinator", "--host", network.address(number), "--port", str(PORT)]
    arguments += ["--no-mdns", "--state-dir", str(state), "--no-host-computes", "--no-profile"]
    arguments += ["--model", model, "--rate", "0", "--strategy", "ofl"]
    for each in _WORKERS:
        arguments += ["--worker", f"{network.address(each)}:{WORKER}"]
    log, models = (state.parent / f"{state.name}-{what}" for what in ("log", "models"))
    own = (*within, "env", f"{VARIABLE}={models}")
    return children.start(state.name, arguments, log, state / "ready.json", own)


def _front(
    stack: ExitStack, network: Network, number: int, folder: Path, within: Sequence[str]
) -> None:
    """HAProxy and keepalived on a machine."""
    proxy, address = folder / f"haproxy-{number}.cfg", folder / f"keepalived-{number}.conf"
    control = folder / f"control-{number}"
    servers = {f"pi-{n}.local:8460": f"{network.address(n)}:{PORT}" for n in _COORDINATORS}
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
    for each in threads:
        each.start()
    try:
        yield seen
    finally:
        stop.set()
        for each in threads:
            each.join()


def measure(
    folder: Path, model: str, pace: float, partitions: int, deaths: int
) -> dict[str, dict[str, Any]]:
    """The figures of machines that lose each other, and of those that die, so often each."""
    parts = {}
    with house(folder, model, pace) as made:
        if partitions:
            parts["partitions"] = _partitioned(made, model, partitions)
        if deaths:
            parts["machines"] = _deaths(made, model, deaths)
    return parts


def _partitioned(made: House, model: str, times: int) -> dict[str, Any]:
    """By turns: the coordinators' machines lose each other, so that both take the shared address;
    and each of them loses the third machine, a worker and a server of the store.
    """
    third = _WORKERS[0]
    ways = (_COORDINATORS, (_COORDINATORS[0], third), (_COORDINATORS[1], third))
    moments = []
    with asking(model) as seen:
        time.sleep(_CALM_S)
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
        time.sleep(_CALM_S)
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
