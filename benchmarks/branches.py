"""Whether branches of a network are worth computing on different devices, as predicted.

    python -m benchmarks.branches [--json] [--networks googlenet,inceptionv3] [--devices 2,4,8]

An Inception module's branches depend on its input alone, so each may run on a device of its own;
cutting the map in rows instead uses the same devices. Three numbers for each network and cluster,
all as speed-ups over one device by the event simulator: the best of `halo` and `auto`; the best
plan that goes over from rows to branches at some module and stays with them; and what branches
could give at most, were sending free (the sum over modules of the longest branch).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.report import command_line, emit
from coordinator.costs.rates import RateCosts
from coordinator.planning.devices import Cluster, Device, Link
from coordinator.planning.finish import plan_of_blocks
from coordinator.planning.plan import Block, DeviceId, Exchange, Plan, Tile
from coordinator.planning.strategies import strategy
from models.catalogue import load
from models.graph import load_graph
from models.tiles import tile_boxes, whole_map
from models.units import Network, divide
from models.work import tile_works

GFLOPS = 1.85
MBPS = (93.7, 940.0)
SPATIAL = ("halo", "auto")
"""What rows are cut by."""

Branch = tuple[int, ...]
"""Units that run one after the other on one device."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = command_line(__doc__)
    parser.add_argument("--networks", default="googlenet,inceptionv3")
    parser.add_argument("--devices", default="2,4,8")
    given = parser.parse_args(arguments)
    rows = []
    for name in given.networks.split(","):
        network = divide(load_graph(load(name).proto, name))
        for count, mbps in itertools.product(map(int, given.devices.split(",")), MBPS):
            rows.append(measure(network, _cluster(count, mbps)) | {"devices": count, "mbps": mbps})
            print(_line(rows[-1]), file=sys.stderr, flush=True)
    most = max(row["branches"] / row["rows"] for row in rows)
    emit({"rows": rows}, given, f"branches make rows at most {most - 1:.1%} faster")
    return 0


def measure(network: Network, cluster: Cluster) -> dict[str, Any]:
    """One row of the table."""
    plans = {name: strategy(name)(network, cluster) for name in SPATIAL}
    alone = next(iter(plans.values())).single_device_latency_s
    mixed = list(_mixed(network, cluster, plans["halo"]))
    return {
        "network": network.name,
        "rows": max(alone / plan.predicted_latency_s for plan in plans.values()),
        "branches": max(alone / plan.predicted_latency_s for plan in mixed),
        "at_most": _at_most(network),
    }


def modules(network: Network) -> Iterator[tuple[int, int]]:
    """Runs of units between boundaries that a single tensor crosses."""
    marks = [k for k, each in enumerate(network.boundaries) if len(each.live) <= 1]
    yield from itertools.pairwise(marks)


def branches(network: Network, start: int, stop: int) -> list[Branch]:
    """Units [start, stop) apart where nothing but the module's input joins them; what joins several
    belongs to the last of them.
    """
    given = set(network.boundaries[start].live)
    found: list[Branch] = []
    for index in range(start, stop):
        read = {name for node in network.units[index].nodes for name in node.inputs} - given
        joined = [each for each in found if read & _made(network, each)]
        if not joined:
            found.append((index,))
        else:
            found.remove(joined[-1])
            found.append((*joined[-1], index))
    return found


def _made(network: Network, branch: Branch) -> set[str]:
    return {
        name for index in branch for node in network.units[index].nodes for name in node.outputs
    }


def _flop(network: Network, units: Sequence[int]) -> int:
    return sum(
        work.flop
        for k in units
        for work in tile_works(
            network.graph,
            network.units[k].nodes,
            tile_boxes(network, k, k + 1, whole_map(network, k, k + 1)),
        )
    )


def _at_most(network: Network) -> float:
    longest = sum(
        max(_flop(network, branch) for branch in branches(network, start, stop))
        for start, stop in modules(network)
    )
    return _flop(network, range(len(network.units))) / longest


def _mixed(network: Network, cluster: Cluster, rows: Plan) -> Iterator[Plan]:
    """Rows up to some module, branches from there on, on as many devices as there may be."""
    most = len(cluster.devices)
    for (first, _), used in itertools.product(modules(network), range(2, min(most, 4) + 1)):
        before = [block for block in rows.blocks if block.stop <= first]
        if (before[-1].stop if before else 0) == first:
            after = _by_branches(network, cluster.devices[:used], first)
            yield plan_of_blocks("branches", [*before, *after], network, cluster)


def _by_branches(network: Network, devices: Sequence[Device], first: int) -> list[Block]:
    """A block per unit, whole on the device of its branch; the longest branches first."""
    owner: dict[int, DeviceId] = {}
    for start, stop in modules(network):
        if start < first:
            continue
        load = dict.fromkeys((device.id for device in devices), 0)
        by_length = sorted(branches(network, start, stop), key=lambda each: -_flop(network, each))
        for branch in by_length:
            least = min(load, key=lambda each: load[each])
            load[least] += _flop(network, branch)
            owner.update(dict.fromkeys(branch, least))
    blocks = []
    for index in range(first, len(network.units)):
        boxes = tile_boxes(network, index, index + 1, whole_map(network, index, index + 1))
        given = set(network.boundaries[index].live) <= set(network.graph.inputs)
        tiles = (Tile(owner[index], boxes),)
        exchange: Exchange = "host" if given else "peer"
        blocks.append(Block(index, index + 1, tiles, barrier=False, exchange=exchange))
    return blocks


def _cluster(count: int, mbps: float) -> Cluster:
    link = Link(mbps * 1e6 / 8, message_s=0.001, latency_s=0.002)
    devices = tuple(
        Device(DeviceId(f"pi-{k}"), f"pi-{k}", RateCosts(GFLOPS), link, GFLOPS, memory_bytes=0)
        for k in range(count)
    )
    return Cluster(devices)


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['network']:12} {row['devices']} devices {row['mbps']:5.1f} Mbps  "
        f"rows {row['rows']:.2f}x  branches {row['branches']:.2f}x  "
        f"(at most {row['at_most']:.2f}x)"
    )


if __name__ == "__main__":
    raise SystemExit(main())
