"""Maps that travel encoded: exact geometry, known loss, and comparisons that can fail."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numbers
from onnx import TensorProto

from models.catalogue.loading import ranges_of
from models.check.effect import Differences, Encoded
from models.cut.cutter import cut
from models.cut.encoded import encodes
from models.cut.program import BlobSource
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from models.run.reference import EQUAL, ProgramRunner, WholeModel, answer, compare, random_inputs
from models.tensors.boxes import Box, Span
from models.tensors.precision import Wire
from models.tensors.wire import PerChannel
from protos.errors import BadRequest
from tests.examples import examples
from tests.models.attention import deformable
from tests.models.networks import Sketch


def model() -> onnx.ModelProto:
    """Two convolutions and a residual sum: t1 passes between blocks and is read twice."""
    sketch = Sketch((12, 10))
    sketch.channels["x"] = 3
    first = sketch.add("Relu", [sketch.conv("x", 4, (3, 3), pads=[1] * 4)], 4)
    second = sketch.conv(first, 4, (3, 3), pads=[1] * 4)
    return sketch.model([sketch.add("Add", [second, first], 4)])


def network() -> Network:
    graph = load_graph(model())
    return divide(graph, lambda: ranges_of(graph, (random_inputs(graph, seed) for seed in (7, 8))))


def tiled(net: Network, feeds: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    """Every unit in strips of so many rows, encoded maps between them."""
    blobs, tensors = BlobSource(), dict(feeds)
    runner = ProgramRunner(blobs, threads=1)
    for start in range(len(net.units)):
        for name in net.outputs(start, start + 1):
            shape = net.graph.shape(name)
            merged = np.zeros(shape, net.graph.tensors[name].on_wire.dtype)
            for top in range(0, shape[2], rows):
                box = Box.whole(shape).replace(2, Span(top, min(shape[2], top + rows)))
                tile = cut(net.graph, net.nodes(start, start + 1), {name: box}, blobs)
                parts = {
                    each: np.ascontiguousarray(tensors[each][part.slices()])
                    for each, part in tile.inputs.items()
                }
                (made,) = runner.run(tile.program, parts, [name])
                assert made.dtype == merged.dtype
                merged[box.slices()] = made[box.slices(inside=tile.yields[name])]
            tensors[name] = merged
    return answer(net.graph.outputs, net.graph.joined, tensors)


@pytest.mark.parametrize(("wire", "bytes_each"), [("exact", 4), ("fp16", 2), ("int8", 1)])
def test_maps_between_blocks_travel_encoded_and_ends_exact(wire: Wire, bytes_each: int) -> None:
    graph = network().wired(wire).graph
    assert graph.tensors["t1"].wire_itemsize == bytes_each
    assert graph.tensors["t1"].itemsize == 4
    # What the host sends and answers stays as it is.
    assert {graph.tensors[name].wire_itemsize for name in ("x", *graph.outputs)} == {4}
    assert encodes(graph, "t1")
    assert not encodes(graph, "x")
    assert not encodes(graph, graph.outputs[0])


def test_places_travel_exactly() -> None:
    graph = load_graph(deformable())
    sampled = [node.inputs for node in graph.nodes if node.op == "GridSample"]
    for values, places in sampled:
        assert encodes(graph, values)
        assert not encodes(graph, places)


def test_ranges_are_found_where_a_stride_skips_the_last_rows() -> None:
    sketch = Sketch((12, 10))
    sketch.channels["x"] = 3
    first = sketch.add("Relu", [sketch.conv("x", 4, (3, 3), strides=[2, 2])], 4)
    net = sketch.model([sketch.conv(first, 4, (3, 3), pads=[1] * 4)])
    graph = load_graph(net)
    found = ranges_of(graph, [random_inputs(graph, 7)])
    assert found
    assert all(np.isfinite(each.most).all() for each in found.values())


@pytest.mark.parametrize(("wire", "limit"), [("exact", 1e-6), ("fp16", 1e-3), ("int8", 0.03)])
def test_tiles_lose_what_their_encoding_loses_and_no_more(wire: Wire, limit: float) -> None:
    net = network().wired(wire)
    feeds = random_inputs(net.graph)
    whole = WholeModel(model(), threads=1).run(feeds)
    strips, blocks = tiled(net, feeds, 5), Encoded(net, [(0, 1), (1, 2)]).run(feeds)
    error = compare(strips, whole).max_rel_error
    assert error <= limit
    assert compare(strips, blocks).max_rel_error <= 1e-6
    assert (error > 1e-6) == (wire != "exact")


def test_a_wrong_scale_is_noticed() -> None:
    net = network().wired("int8")
    info = net.graph.tensors["t1"]
    assert isinstance(info.wire, PerChannel)
    swapped = replace(info.wire, scales=info.wire.scales[::-1])
    wrong = {**net.graph.tensors, "t1": replace(info, wire=swapped)}
    feeds, blobs = random_inputs(net.graph), BlobSource()
    runner = ProgramRunner(blobs, threads=1)
    (first, second), made = net.units, {"t1": Box.whole(info.shape)}
    name = net.graph.outputs[0]
    box = {name: Box.whole(net.graph.shape(name))}
    (wired,) = runner.run(cut(net.graph, first.nodes, made, blobs).program, feeds, ["t1"])
    expected = WholeModel(model(), threads=1).run(feeds)
    for graph, right in ((net.graph, True), (replace(net.graph, tensors=wrong), False)):
        program = cut(graph, second.nodes, box, blobs).program
        (answer,) = runner.run(program, {"t1": wired}, [name])
        assert (compare({name: answer}, expected).max_rel_error < 0.03) == right


def test_a_tile_of_some_channels_has_their_scales() -> None:
    net = network().wired("int8")
    feeds, blobs = random_inputs(net.graph), BlobSource()
    runner, whole = ProgramRunner(blobs, threads=1), Box.whole(net.graph.shape("t1"))
    made = []
    for box in (whole, whole.replace(1, Span(1, 3))):
        tile = cut(net.graph, net.units[0].nodes, {"t1": box}, blobs)
        made += runner.run(tile.program, feeds, ["t1"])
    assert compare({"t": made[1]}, {"t": made[0][:, 1:3]}) == EQUAL
    assert compare({"t": made[1]}, {"t": made[0][:, 0:2]}) != EQUAL


values = st.floats(-1e4, 1e4, width=32)


@settings(max_examples=examples(50))
@given(numbers.arrays(np.float32, (3, 8), elements=values))
def test_eight_bits_are_off_by_half_a_step(array: np.ndarray) -> None:
    encoding = PerChannel.covering(array.min(axis=1), array.max(axis=1))
    scales = np.array(encoding.scales)[:, None]
    zeros = np.array(encoding.zero_points)[:, None]
    steps = np.clip(np.rint(array / scales) + zeros, 0, 255)
    # Half a step of rounding, and as much because zero lies on a step.
    assert np.all(np.abs((steps - zeros) * scales - array) <= scales * 1.01)
    assert np.all((zeros >= 0) & (zeros <= 255))


def test_wired_networks_are_made_once_with_equal_units() -> None:
    exact = network()
    half = exact.wired("fp16")
    assert exact.wired("fp16") is half
    assert half.wired("exact") is exact
    assert half.wired("int8") is exact.wired("int8")
    assert [unit.name for unit in half.units] == [unit.name for unit in exact.units]
    assert half.units[0].graph is half.graph


def test_eight_bits_need_ranges() -> None:
    with pytest.raises(BadRequest, match="the ranges"):
        divide(load_graph(model())).wired("int8")


def test_maps_without_ranges_stay_exact() -> None:
    net = divide(load_graph(model()), dict).wired("int8")
    assert net.graph.tensors["t1"].on_wire.data_type == TensorProto.FLOAT


def test_differences_are_collected() -> None:
    found = Differences()
    expected = {"y": np.array([[1.0, 2.0]], np.float32)}
    found.add(expected, expected)
    found.add({"y": np.array([[2.0, 1.0]], np.float32)}, expected)
    effect = found.effect()
    assert (effect.inputs, effect.top1_agreement, effect.max_rel_error) == (2, 0.5, 0.5)
    assert effect.as_json()["median_rel_error"] == 0.25
