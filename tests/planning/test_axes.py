"""Ranges of whole families of tiles, beside the exact boxes of each tile: on random graphs of every
operator, pads of any kind among them, and on networks that pad as TensorFlow does.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from coordinator.planning.geometry import axes
from coordinator.planning.geometry.blocks import geometry_of
from coordinator.planning.legal import check_plan
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.planning.search.tables import Tables
from models.cut.tile_work import block_work
from models.cut.tiles import MapTile, grain, on_map, places, tile_boxes
from models.cut.units import Network, divide
from models.graph.graph import COLS, ROWS
from models.onnx_file.builder import NetworkBuilder as Builder
from models.onnx_file.builder import NetworkTensor, square
from models.onnx_file.importer import load_graph
from models.operators import MOST_LINES_ASKED
from models.run.reference import WholeModel, compare, random_inputs
from models.tensors.boxes import Span
from tests.models.attention import Net
from tests.models.proposals import PROPOSALS
from tests.models.random_graphs import random_graphs
from tests.planning.run_plan import run_plan
from tests.planning.support import CLUSTERS

# Top, left, bottom, right. An even map under a 3x3 window of stride 2 gets its pads at the end.
SAME = ((0, 0, 1, 1), (1, 1, 1, 1), (2, 0, 0, 2), (0, 3, 2, 0))


def padded(name: str, x: NetworkTensor, pads: Sequence[int]) -> NetworkTensor:
    """A Pad of its own, as exporters write TensorFlow's "SAME"; filled with 0.5."""
    net = x.network
    height, width = (x.shape[2] + pads[0] + pads[2], x.shape[3] + pads[1] + pads[3])
    ends = net.integers(f"{name}_pads", (0, 0, pads[0], pads[1], 0, 0, pads[2], pads[3]))
    fill = net.constant(f"{name}_fill", np.array(0.5, np.float32))
    return net.node("Pad", name, [x.name, ends, fill], (*x.shape[:2], height, width))


def tensorflow_like(pads: Sequence[int]) -> ModelProto:
    """Pads before windows of stride 2 and 1, beside a shortcut, and at the very end."""
    net = Builder("padded", seed=5)
    x = net.input("image", (1, 3, 40, 36))
    for k in range(3):
        x = padded(f"pad{k}", x, pads).conv(f"conv{k}", 8, square(3, 2, pad=0)).relu()
        x = padded(f"wide{k}", x, pads).conv(f"same{k}", 8, square(3, pad=0)).relu()
    return net.model(padded("last", x, pads))


def assert_covers_the_definition(network: Network, tile: MapTile, start: int, end: int) -> None:
    """Ranges that tables have of a tile hold all that it computes and reads."""
    geometry = geometry_of(network)
    splits, edges = geometry.splits[end], geometry.boundaries
    assert splits is not None
    boxes = tile_boxes(network, edges[start], edges[end], tile)
    reach = block_work(network, edges[start], edges[end], boxes).reach
    entering = splits.entering[start - splits.lowest]
    names = splits.input_names[entering]
    for t, name in enumerate(names, entering.start):
        spans = splits.inputs.ranges([t], splits.places([tile]))[0, 0].tolist()
        for axis, (first, last) in zip((ROWS, COLS), spans, strict=True):
            assert first <= last, (name, spans)
            box, place = reach.inputs.get(name), network.graph.axis(name, axis)
            if box is not None and place is not None:
                assert first <= box[place].start, (name, axis, spans, box)
                assert box[place].stop <= last, (name, axis, spans, box)
    assert set(reach.inputs) <= set(names)
    assert (splits.groups.tiles(splits.places([tile])) >= 0).all()


def tiles_of(height: int, width: int) -> st.SearchStrategy[MapTile]:
    """Any part of a map that plans may make, thin ones often."""

    def spans(size: int) -> st.SearchStrategy[Span]:
        starts = st.integers(0, places(size) - 1)
        lengths = st.sampled_from([1, 1, 2, size])
        return st.builds(lambda a, n: on_map(size, [Span(a, a + n)])[0], starts, lengths)

    return st.builds(MapTile, spans(height), spans(width))


def check_graphs(count: int) -> int:
    """Compares so many random graphs; how many blocks were compared."""
    compared = 0

    @settings(
        derandomize=count <= 200,
        max_examples=count,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(random_graphs(PROPOSALS), st.data())
    def check(model: ModelProto, data: st.DataObject) -> None:
        nonlocal compared
        network = divide(load_graph(model))
        geometry = geometry_of(network)
        for end, splits in enumerate(geometry.splits):
            if splits is not None:
                tile = data.draw(tiles_of(splits.height, splits.width))
                whole = MapTile(Span(0, splits.height), Span(0, splits.width))
                for start in range(splits.lowest, end):
                    can_be = start >= splits.lowest_cols
                    cut = tile if can_be else MapTile(tile.rows, whole.cols)
                    assert_covers_the_definition(network, cut, start, end)
                    assert_covers_the_definition(network, whole, start, end)
                    compared += 1
        for some in CLUSTERS.values():
            tables = Tables(geometry, some)
            for end, splits in enumerate(geometry.splits):
                if splits is not None:
                    begins, ends, *_ = tables.strips_s(splits, end)
                    assert (np.diff(begins, axis=2) >= -1e-12).all()
                    assert (np.diff(ends, axis=2) >= -1e-12).all()

    check()
    return compared


def test_random_graphs_are_never_said_to_need_less() -> None:
    assert check_graphs(40) > 25


@pytest.mark.slow
def test_thousands_of_graphs_are_never_said_to_need_less() -> None:
    assert check_graphs(3000) > 2000


@pytest.mark.parametrize(
    "pads",
    [*SAME[::2], *(pytest.param(pads, marks=pytest.mark.slow) for pads in SAME[1::2])],
)
def test_every_strategy_plans_networks_that_pad_by_themselves(pads: Sequence[int]) -> None:
    model = tensorflow_like(pads)
    network = divide(load_graph(model, "padded"))
    feeds = random_inputs(network.graph)
    whole = WholeModel(model, threads=1).run(feeds)
    geometry = geometry_of(network)
    for end in range(1, len(geometry.marks)):
        splits = geometry.splits[end]
        assert splits is not None
        for row in range(splits.height):
            strip = MapTile(Span(row, row + 1), Span(0, splits.width))
            for start in range(splits.lowest, end):
                assert_covers_the_definition(network, strip, start, end)
    for name, some in CLUSTERS.items():
        for planner in STRATEGIES.values():
            plan = planner(network, some)
            check_plan(plan, network, some)
            assert plan.predicted_latency_s > 0
            if name == "unlike":
                assert compare(run_plan(plan, network, feeds), whole).max_rel_error <= 1e-5


def test_statistics_of_rows_that_lie_along_another_axis_are_joined() -> None:
    """The rows of x are its first axis, which the normalisation over channels and map sums up."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["map"]),
        helper.make_node("LayerNormalization", ["map", "scale"], ["y"], axis=1),
    ]
    shape = [1, 1, 2, 2]
    graph = helper.make_graph(
        nodes,
        "narrow",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape[1:])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("map", "y")],
        [
            helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
            helper.make_tensor("scale", TensorProto.FLOAT, shape[1:], [0.5, 1.0, 1.5, 2.0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    network = divide(load_graph(model))
    feeds = random_inputs(network.graph)
    whole = WholeModel(model, threads=1).run(feeds)
    for planner in STRATEGIES.values():
        plan = planner(network, CLUSTERS["unlike"])
        assert compare(run_plan(plan, network, feeds), whole).max_rel_error <= 1e-4


def flattened(side: int) -> ModelProto:
    """A map that is flattened, once as rows of tokens and once as a list of anchors."""
    net = Net(1, 3, 2 * side, 2 * side)
    x = net.add("Relu", net.conv("x", 3, 8, 3, stride=2))
    tokens = net.add("Transpose", net.reshape(x, 1, 8, -1), perm=[0, 2, 1])
    tokens = net.add("Relu", net.linear(tokens, 8, 16))
    anchors = net.add("Sigmoid", net.reshape(net.conv(x, 8, 4, 3), 1, 4, -1))
    return net.model(net.linear(tokens, 16, 8), anchors)


def test_long_lists_are_planned_at_their_places() -> None:
    model = flattened(48)
    network = divide(load_graph(model, "flattened"))
    feeds = random_inputs(network.graph)
    whole = WholeModel(model, threads=1).run(feeds)
    geometry = geometry_of(network)
    long = 0
    for end, splits in enumerate(geometry.splits):
        if splits is not None and grain(splits.height) > 1:
            long += 1
            assert splits.groups.row_first.shape[1] == places(splits.height) + 1
            for rows in on_map(splits.height, [Span(0, 1), Span(7, 9), Span(0, 384)]):
                for start in range(splits.lowest, end):
                    tile = MapTile(rows, Span(0, splits.width))
                    assert_covers_the_definition(network, tile, start, end)
    assert long > 0
    for name, some in CLUSTERS.items():
        for planner in STRATEGIES.values():
            plan = planner(network, some)
            check_plan(plan, network, some)
            if name == "unlike":
                assert compare(run_plan(plan, network, feeds), whole).max_rel_error <= 1e-5


def many_moved(count: int, size: int) -> ModelProto:
    """Constants that are tiled to whole maps at run time: too much to be made at loading."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y0"], kernel_shape=[1, 1])]
    for number in range(count):
        nodes.append(helper.make_node("Tile", ["one", "repeats"], [f"t{number}"]))
        nodes.append(helper.make_node("Add", [f"y{number}", f"t{number}"], [f"y{number + 1}"]))
    shape = [1, 4, size, size]
    graph = helper.make_graph(
        nodes,
        "moved",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info(f"y{count}", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor("w", TensorProto.FLOAT, [4, 3, 1, 1], [1.0] * 12),
            helper.make_tensor("one", TensorProto.FLOAT, [1, 1, 1, 1], [1.0]),
            helper.make_tensor("repeats", TensorProto.INT64, [4], shape),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_planners_ask_of_only_so_many_rows_and_columns(monkeypatch):
    """A file of some kilobytes must not take minutes to be planned."""
    asked = []

    def cheap(graph, node, axis, size, given):
        asked.append(size)
        return axes.NodeRanges(None, tuple(axes.Ranges.constant(size, 1) for _ in given))

    monkeypatch.setattr(axes, "_probed", cheap)
    graph = load_graph(many_moved(60, 1024))
    for axis in (ROWS, COLS):
        line = axes.Axis(graph, axis)
        for index in range(len(graph.nodes)):
            line.of(index)
    assert 0 < sum(asked) <= MOST_LINES_ASKED
    refused = [node for node in graph.nodes if node.refusal]
    assert len(refused) == 60 - MOST_LINES_ASKED // 2048
    assert f"more than {MOST_LINES_ASKED} rows" in refused[0].refusal


def test_an_operator_that_is_not_divided_may_lack_inputs() -> None:
    """As CrossViT resizes its picture; all that the search asks of it is that it is read whole."""
    net = Net(1, 3, 12, 12)
    wide = net.add("Resize", "x", "", "", net.ints(1, 3, 16, 16), mode="cubic")
    network = divide(load_graph(net.model(net.add("Relu", net.conv(wide, 3, 8, 3)))))
    (index,) = (k for k, node in enumerate(network.graph.nodes) if node.op == "Resize")
    reads = axes.Axis(network.graph, ROWS).of(index).reads
    assert [read is not None and read.is_everything for read in reads] == [True, *[False] * 3]
    for name in ("auto", "halo"):
        cluster = CLUSTERS["unlike"]
        check_plan(STRATEGIES[name](network, cluster), network, cluster)
