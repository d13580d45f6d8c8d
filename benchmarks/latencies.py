"""What the event simulator says of every strategy's plans: the catalogue on the lab's presets.

    python -m benchmarks.latencies --json > before.json
    python -m benchmarks.latencies --before before.json        fails where one is 1 % worse

For changes of planners that should change no plan for the worse. Seconds are simulated, so they are
the same on any machine; a strategy that finds no plan has none.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.report import command_line, emit
from coordinator.costs.affine import Costs
from coordinator.costs.cluster import Cluster
from coordinator.costs.corrections import CorrectedCosts
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.planning.simulate.simulator import simulate
from imbrex.kinds import presets
from imbrex.kinds.clusters import cluster_of
from models.catalogue import catalogue
from models.catalogue.loading import network_of
from models.cut.units import Network
from protos.errors import Infeasible

DEVICES = 8
WORSE = 1.01
# Of the cluster with unlike devices: how many times as long each of them computes.
_TIMES = (1.0, 0.5, 2.0, 1.0, 3.0, 1.0, 0.7, 1.5)


def clusters(devices: int = DEVICES) -> dict[str, Cluster]:
    """Every preset, and one of unlike devices."""
    found = {name: cluster_of(presets.load_kind(name), devices) for name in presets.names()}
    return {**found, "unlike": _unlike(found["pi4-gbe"])}


def _unlike(some: Cluster) -> Cluster:
    costs: dict[float, Costs] = {}
    devices = []
    for device, times in zip(some.devices, _TIMES, strict=False):
        slower = costs.setdefault(times, CorrectedCosts(device.costs, times))
        devices.append(replace(device, costs=slower, speed=device.speed / times))
    return replace(some, devices=tuple(devices))


def measure(
    names: Sequence[str], strategies: Sequence[str], where: Mapping[str, Cluster]
) -> Iterator[dict[str, Any]]:
    """Rows of model, cluster, strategy and simulated seconds."""
    for name in names:
        network = network_of(catalogue.load(name))
        for kind, cluster in where.items():
            for strategy in strategies:
                seconds = _seconds(network, cluster, strategy)
                yield {"model": name, "cluster": kind, "strategy": strategy, "latency_s": seconds}


def _seconds(network: Network, cluster: Cluster, strategy: str) -> float | None:
    try:
        plan = STRATEGIES[strategy](network, cluster)
    except Infeasible:
        return None
    return simulate(plan, network, cluster).latency_s


def worse(
    rows: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]
) -> list[tuple[float, str]]:
    """Rows that take longer than before by more than a hundredth: how many times, and which."""
    earlier = {_key(row): row["latency_s"] for row in before}
    found = []
    for row in rows:
        was, now = earlier.get(_key(row)), row["latency_s"]
        times = 1.0 if was is None else float("inf") if now is None else now / was
        if times > WORSE:
            found.append((times, _key(row)))
    return sorted(found, reverse=True)


def _key(row: Mapping[str, Any]) -> str:
    return f"{row['model']} on {row['cluster']} by {row['strategy']}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the seconds, and what is worse than before."""
    parser: argparse.ArgumentParser = command_line(__doc__)
    parser.add_argument("models", nargs="*", default=catalogue.names(), metavar="MODEL")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--clusters", nargs="+", default=list(clusters()), choices=clusters())
    parser.add_argument("--devices", type=int, default=DEVICES, help="of each cluster but `unlike`")
    parser.add_argument("--before", type=Path, help="what --json printed before the change")
    chosen = parser.parse_args(arguments)
    where = {
        name: cluster
        for name, cluster in clusters(chosen.devices).items()
        if name in chosen.clusters
    }
    rows = list(measure(chosen.models, chosen.strategies, where))
    before = json.loads(chosen.before.read_text())["latencies"] if chosen.before else []
    found = worse(rows, before)
    lines = [f"{_key(row):<60} {row['latency_s'] or float('nan'):10.4f}" for row in rows]
    lines += [f"{times:.3f} times as long: {which}" for times, which in found]
    emit({"latencies": rows, "worse": found}, chosen, "\n".join(lines))
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
