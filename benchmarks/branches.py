"""What branches on different devices gain beside rows alone, as predicted.

    python -m benchmarks.branches [--json] [--networks googlenet,inceptionv3,towers]
                                  [--devices 2,4,8]

An Inception module's branches depend on its input alone, so each may run on a device of its own;
cutting the map in rows uses the same devices. `towers` is a network of two branches from end to
end: stacks of attention over channels, as in two-stream transformers. For each network and cluster
of Raspberry Pi 3s, speed-ups over one device by the event simulator: the best of `fused` and
`halo`, and the same with branches where that is faster.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import onnx

from benchmarks.report import command_line, emit
from coordinator.costs.cluster import Cluster, Device, Link
from coordinator.costs.rates import RateCosts
from coordinator.planning.planners.branches import by_branches
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.named import strategy
from models.catalogue.catalogue import load
from models.cut.units import Network, divide
from models.onnx_file import builder
from models.onnx_file.importer import load_graph
from protos.wire.facts import DeviceId

GFLOPS = 1.85
MBPS = (93.7, 940.0)
ROWS = ("fused", "halo")
TOWERS = "towers"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = command_line(__doc__)
    parser.add_argument("--networks", default=f"googlenet,inceptionv3,{TOWERS}")
    parser.add_argument("--devices", default="2,4,8")
    given = parser.parse_args(arguments)
    rows = []
    for name in given.networks.split(","):
        proto = towers(2) if name == TOWERS else load(name).proto
        network = divide(load_graph(proto, name))
        for count, mbps in itertools.product(map(int, given.devices.split(",")), MBPS):
            rows.append(measure(network, _cluster(count, mbps)) | {"devices": count, "mbps": mbps})
            print(_line(rows[-1]), file=sys.stderr, flush=True)
    most = max(rows, key=lambda row: row["branches"] / row["rows"])
    gain = most["branches"] / most["rows"] - 1
    emit({"rows": rows}, given, f"branches gain at most {gain:.1%}, in {most['network']}")
    return 0


def measure(network: Network, cluster: Cluster) -> dict[str, Any]:
    """One row of the table."""
    plans = [strategy(name)(network, cluster) for name in ROWS]
    alone_s = plans[0].single_device_latency_s
    rows_s = min(simulate(plan, network, cluster).latency_s for plan in plans)
    branched = [by_branches(plan, network, cluster) for plan in plans]
    branches_s = min([rows_s, *(plan.predicted_latency_s for plan in branched if plan is not None)])
    return {
        "network": network.name,
        "rows": alone_s / rows_s,
        "branches": alone_s / branches_s,
    }


def towers(
    count: int, *, width: int = 192, side: int = 14, depth: int = 12, patch: int = 16
) -> onnx.ModelProto:
    """A convolution, `count` towers of attention over its channels, and one of their sum.

    Input (1, 3, side * patch, side * patch), output (1, 4, side, side).
    """
    net = builder.NetworkBuilder(TOWERS, seed=4)
    image = net.input("x", (1, 3, side * patch, side * patch))
    shared = image.conv("patches", width, builder.square(patch, patch, pad=0))
    tokens = (1, width, side * side)
    shape = net.integers("tokens.shape", tokens)
    start = net.node("Reshape", "tokens", [shared.name, shape], tokens)
    tops = [_tower(start, f"tower{number}", depth) for number in range(count)]
    summed = net.node("Sum", "sum", [top.name for top in tops], tokens)
    shape = net.integers("map.shape", shared.shape)
    back = net.node("Reshape", "map", [summed.name, shape], shared.shape)
    return net.model(back.conv("last", 4, builder.square(3)))


def _tower(top: builder.NetworkTensor, name: str, depth: int) -> builder.NetworkTensor:
    """Attention of every channel (1, channels, tokens) to the others, `depth` times."""
    net, (_, width, tokens) = top.network, top.shape
    for number in range(depth):
        layer = f"{name}.{number}"
        turned = net.node(
            "Transpose", f"{layer}.turned", [top.name], (1, tokens, width), perm=[0, 2, 1]
        )
        square = (1, width, width)
        scores = net.node("MatMul", f"{layer}.scores", [top.name, turned.name], square)
        shares = net.node("Softmax", f"{layer}.shares", [scores.name], square, axis=-1)
        mixed = net.node("MatMul", f"{layer}.mixed", [shares.name, top.name], top.shape)
        weight = net.he_weight(f"{layer}.weight", (tokens, tokens))
        top = net.node("MatMul", layer, [mixed.name, weight], top.shape)
    return top


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
        f"rows {row['rows']:.2f}x  with branches {row['branches']:.2f}x"
    )


if __name__ == "__main__":
    raise SystemExit(main())
