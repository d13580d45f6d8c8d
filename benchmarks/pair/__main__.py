"""What it costs clients to lose one of two coordinators, or a server of their shared state.

    python -m benchmarks.pair --kills 50 --nodes 20 --pauses 20 --json
    sudo python -m benchmarks.pair --machines 10 --json

Two coordinators with TLS and a store of three servers, two workers, HAProxy with the configuration
of deploy/haproxy/pair.cfg in front, and eight clients that ask one request after another and
compare each answer with the whole model's. First undisturbed; then the coordinators are killed by
turns at random moments (`--kills`), servers of the store are killed (`--nodes`), coordinators stand
still for a while, as a machine that hangs (`--pauses`), and all daemons are restarted one after the
other (`--upgrades`). After each, everything is whole again before the next. At last, how long it
takes until a change at one of them is true of the other (`--changes`).

`--machines` instead: machines in network namespaces that share one address by keepalived die, so
often (`benchmarks.pair.machines`).
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
from benchmarks.pair.clients import Clients, Seen
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
    parser.add_argument("--machines", type=int, default=0, help="deaths of machines, instead")
    parser.add_argument("--upgrades", type=int, default=8, help="restarts of daemons by turns")
    parser.add_argument("--changes", type=int, default=10, help="of the cluster, at one of the two")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--pace", type=float, default=0.5, help="of each worker")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    if not HAPROXY or not SERVER or (chosen.machines and not KEEPALIVED):
        parser.error("it needs all of them: apt-get install haproxy nats-server keepalived")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = (
            machines.measure(folder, chosen.model, chosen.pace, chosen.machines)
            if chosen.machines
            else measure(folder, chosen)
        )
    emit(result, chosen, shown(result))
    return int(bool(result["lost"] or result["wrong"]))


def measure(folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """The figures of everything."""
    luck = random.Random(chosen.seed)
    with pair(folder, chosen.model, chosen.workers, chosen.pace) as made:
        clients = Clients(made.url, chosen.model)
        with clients.asking() as calm:
            time.sleep(QUIET_S)
        parts = {
            "kills": _harmed(clients, made, chosen.kills, luck, _kill),
            "nodes": _harmed(clients, made, chosen.nodes, luck, _kill_node),
            "pauses": _harmed(clients, made, chosen.pauses, luck, _pause),
            "upgrades": _harmed(clients, made, chosen.upgrades, luck, _upgrade),
        }
        store = store_costs(made)
        changes = changed(made, chosen.changes)
    return {
        "requests": sum(each["requests"] for each in parts.values()) + calm.requests,
        "lost": sum(each["lost"] for each in parts.values()) + calm.lost,
        "wrong": sum(each["wrong"] for each in parts.values()) + calm.wrong,
        "undisturbed": _told(calm, []),
        **parts,
        "store": store,
        "changes": changes,
    }


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
    return {"times": times, **_told(seen, moments)}


def _told(seen: Seen, moments: list[float]) -> dict[str, Any]:
    """`takeover_s`: how long the slowest request took that was open at each harm, the median and
    the worst.
    """
    slowest = [
        max((took for began, took in seen.times if began <= at < began + took), default=0.0)
        for at in moments
    ]
    slowest.sort()
    return {
        "requests": seen.requests,
        "lost": seen.lost,
        "wrong": seen.wrong,
        "statuses": {str(status): count for status, count in sorted(seen.statuses.items())},
        "median_s": round(seen.latency_s(0.5), 4) if seen.times else None,
        "p99_s": round(seen.latency_s(0.99), 4) if seen.times else None,
        "takeover_s": [round(slowest[len(slowest) // 2], 3), round(slowest[-1], 3)]
        if slowest
        else None,
    }


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
