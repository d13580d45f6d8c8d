"""What it costs clients to lose one of two coordinators, or a server of their shared state.

    sudo python -m benchmarks.pair --json
    python -m benchmarks.pair --partitions 0 --machines 0 --json

Two coordinators with TLS and a store of three servers, two workers, HAProxy with the configuration
of deploy/haproxy/pair.cfg in front, and eight clients that ask one request after another and
compare each answer with the whole model's. First undisturbed; then the coordinators are killed by
turns at random moments (`--kills`), servers of the store are killed (`--nodes`), coordinators stand
still for a while, as a machine that hangs (`--pauses`), and all daemons are restarted one after the
other (`--upgrades`). After each, everything is whole again before the next. At last, how long it
takes until a change at one of them is true of the other (`--changes`), and undisturbed requests
until there were `--requests` in all.

Then machines in network namespaces, which needs root (`benchmarks.pair.machines`): first they are
left alone; two of them lose
each other for some seconds (`--partitions`), and the one that has the shared address dies
(`--machines`), while eight clients of ours ask.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.pair import machines
from benchmarks.pair.changes import changed, store_costs
from benchmarks.pair.clients import Clients
from benchmarks.pair.machines import KEEPALIVED
from benchmarks.pair.processes import HAPROXY, Pair, pair, shown
from benchmarks.report import command_line, emit
from benchmarks.store import SERVER

QUIET_S = 20.0
# Longer than HAProxy waits for an answer of a coordinator that stands still.
PAUSE_S = 15.0


def main() -> int:
    """Prints the result; fails if a request was lost or answered wrongly."""
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=50, help="of coordinators")
    parser.add_argument("--nodes", type=int, default=20, help="kills of servers of the store")
    parser.add_argument("--pauses", type=int, default=20, help="of coordinators")
    parser.add_argument("--upgrades", type=int, default=8, help="restarts of daemons by turns")
    parser.add_argument("--changes", type=int, default=10, help="of the cluster, at one of the two")
    parser.add_argument("--requests", type=int, default=5000, help="at least so many")
    parser.add_argument("--partitions", type=int, default=20, help="between machines; root")
    parser.add_argument("--machines", type=int, default=10, help="deaths of machines; root")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--pace", type=float, default=0.5, help="of each worker")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    in_house = bool(chosen.partitions or chosen.machines)
    if not HAPROXY or not SERVER or (in_house and not KEEPALIVED):
        parser.error("it needs all of them: apt-get install haproxy nats-server keepalived")
    with tempfile.TemporaryDirectory() as name:
        parts, told = measure(Path(name), chosen)
    if in_house:
        with tempfile.TemporaryDirectory() as name:
            folder, counts = Path(name), (chosen.partitions, chosen.machines)
            parts |= machines.measure(folder, chosen.model, chosen.pace, *counts)
    result = summary(parts) | told
    emit(result, chosen, shown(result))
    return int(bool(result["lost"] or result["wrong"]))


def summary(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All requests; how often what was harmed; of each part the median and the worst `takeover_s`,
    and how many times the 99th percentile is that of undisturbed requests in the same place.
    """
    harms = {name: part for name, part in parts.items() if "times" in part}
    return {
        **{key: sum(part[key] for part in parts.values()) for key in ("requests", "lost", "wrong")},
        **{name: times_of["times"] for name, times_of in harms.items()},
        "takeover_s": {name: harm_["takeover_s"] for name, harm_ in harms.items()},
        "p99_ratio": {
            name: round(harm_["p99_s"] / parts[calm]["p99_s"], 2)
            for name, harm_ in harms.items()
            for calm in [machines.CALM if name in machines.HARMS else "undisturbed"]
            if harm_["p99_s"] and parts[calm]["p99_s"]
        },
        "parts": parts,
    }


def measure(
    folder: Path, chosen: argparse.Namespace
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The figures of processes on this machine, by what harms them, and others."""
    luck = random.Random(chosen.seed)
    harms = {"kills": _kill, "nodes": _kill_node, "pauses": _pause, "upgrades": _upgrade}
    with pair(folder, chosen.model, chosen.workers, chosen.pace) as made:
        clients = Clients(made.url, chosen.model)
        with clients.asking() as calm:
            time.sleep(QUIET_S)
        parts = {"undisturbed": calm.told()}
        for name, harm in harms.items():
            if times := getattr(chosen, name):
                parts[name] = _harmed(clients, made, times, luck, harm)
        missing = chosen.requests - sum(part["requests"] for part in parts.values())
        if missing > 0:
            with clients.asking() as more:
                while more.requests < missing:
                    time.sleep(1.0)
            parts["more"] = more.told()
        if not chosen.changes:
            return parts, {}
        store = store_costs(made)
        return parts, {"store": store, "changes": changed(made, chosen.changes)}


def _harmed(
    clients: Clients,
    made: Pair,
    times: int,
    luck: random.Random,
    harm: Callable[[Pair, int], None],
) -> dict[str, Any]:
    """Harms something so often while clients ask."""
    moments: list[float] = []
    with clients.asking() as seen:
        for number in range(times):
            time.sleep(luck.uniform(0.5, 1.5))
            moments.append(time.monotonic())
            harm(made, number)
            made.whole()
    return {"times": times, **seen.told(), "takeover_s": seen.takeover_s(moments)}


def _upgrade(made: Pair, number: int) -> None:
    daemons = (*made.members, *made.workers)
    daemons[number % len(daemons)].restart()


def _kill(made: Pair, number: int) -> None:
    coordinator = made.members[number % 2]
    coordinator.kill()
    coordinator.start()


def _kill_node(made: Pair, number: int) -> None:
    node = made.store.nodes[number % len(made.store.nodes)]
    node.kill()
    time.sleep(1.0)
    node.start()


def _pause(made: Pair, number: int) -> None:
    coordinator = made.members[number % 2]
    coordinator.pause()
    time.sleep(PAUSE_S)
    coordinator.pause(end=True)


if __name__ == "__main__":
    sys.exit(main())
