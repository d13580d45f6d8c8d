"""What planning costs, counted, not timed: no node is asked again what it reads, and work grows
with a network no faster than its blocks do.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest

from coordinator.planning.geometry import axes, layouts
from coordinator.planning.geometry.blocks import Geometry
from coordinator.planning.planners.strategies import STRATEGIES
from models.cut.units import Network, Unit, divide
from models.graph.graph import Graph, Node
from models.onnx_file.builder import NetworkBuilder as Builder
from models.onnx_file.builder import square
from models.onnx_file.importer import load_graph
from models.operators.geometry import Extent
from models.tensors.boxes import Box
from tests.planning.support import CLUSTERS

TAPS = 3  # outputs of several scales, as detectors have


def long_network(layers: int) -> Network:
    """Convolutions and concats over maps of several sizes, all of which are read at the end."""
    net = Builder("long", seed=2)
    x = net.input("image", (1, 3, 64, 64))
    kept = []
    for k in range(layers):
        stride = 2 if k in (layers // 4, layers // 2) else 1
        y = x.conv(f"conv{k}", 4, square(3, stride)).relu()
        x = net.concat(f"join{k}", [y, y.conv(f"side{k}", 2, square(1)).relu()])
        if k % (layers // TAPS) == 0:
            kept.append(x)
    return divide(load_graph(net.model(*kept, x), "long"))


class Calls:
    """How often the expensive functions were called."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.nodes: Counter[tuple[str, int]] = Counter()
        self.extents = 0
        real_ranges, real_extent = axes._node_ranges, Unit.extent

        def ranges(graph: Graph, node: Node, axis: int) -> axes.NodeRanges:
            self.nodes[node.name, axis] += 1
            return real_ranges(graph, node, axis)

        def extent(unit: Unit, *demand: object) -> Extent:
            self.extents += 1
            return real_extent(unit, *demand)  # type: ignore[arg-type]

        patch.setattr(axes, "_node_ranges", ranges)
        patch.setattr(Unit, "extent", extent)


def test_a_node_is_asked_once_per_axis_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    network = long_network(24)
    assert Geometry(network).splits
    assert calls.nodes
    assert set(calls.nodes.values()) == {1}
    assert len(calls.nodes) <= 2 * len(network.graph.nodes)


def test_twice_the_layers_are_about_twice_the_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    for layers in (18, 36):
        with monkeypatch.context() as patch:
            calls = Calls(patch)
            assert Geometry(long_network(layers)).splits
            counted.append(calls.extents)
    assert counted[1] <= 2.5 * counted[0]


@pytest.mark.parametrize("name", ["halo", "fused"])
def test_no_unit_is_extended_twice_for_the_same_tile(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that end alike ask the same of their last units, whatever unit they begin with."""
    network = long_network(9)
    asked: Counter[object] = Counter()
    real = Unit.extent

    def extent(unit: Unit, demand: dict[str, object]) -> Extent:
        asked[unit.start, tuple(demand.items())] += 1
        return real(unit, demand)  # type: ignore[arg-type]

    monkeypatch.setattr(Unit, "extent", extent)
    STRATEGIES[name](network, CLUSTERS["alike"])
    assert asked
    assert set(asked.values()) == {1}


@pytest.mark.parametrize("name", ["elimination", "kcut"])
def test_layers_that_repeat_are_divided_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    for layers in (4, 8):
        net = Builder("repeated", seed=2)
        x = net.input("image", (1, 4, 32, 32))
        for k in range(layers):
            x = x.conv(f"conv{k}", 4, square(3)).relu()
        network = divide(load_graph(net.model(x), "repeated"))
        asked: Counter[object] = Counter()
        real = layouts.extent

        def extent(
            graph: Graph,
            nodes: Sequence[Node],
            demand: Mapping[str, Box],
            asked: Counter[object] = asked,
            real: Callable[..., Extent] = real,
        ) -> Extent:
            asked[tuple(demand.values())] += 1
            return real(graph, nodes, demand)

        with monkeypatch.context() as patch:
            patch.setattr(layouts, "extent", extent)
            STRATEGIES[name](network, CLUSTERS["alike"])
        counted.append(asked)
    assert counted[0] == counted[1]
    assert set(counted[0].values()) == {1}
