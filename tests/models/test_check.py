"""What a check says: right answers are ok, wrong ones noticed, and it knows when it is blind."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.check.check import CheckReport, check, fused
from models.check.tolerance import HALF, PLAIN, SIXTEEN, tolerance
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from models.run.double import answer_in_double
from models.run.reference import WholeModel, compare, picture_inputs

SIDE = 64
Node = onnx.NodeProto
node = helper.make_node


def value(name: str, *shape: int, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape or None)


def weights(
    name: str, *shape: int, scale: float = 0.2, kind: type = np.float32
) -> onnx.TensorProto:
    array = np.random.default_rng(len(name)).normal(0, scale, shape)
    return numpy_helper.from_array(array.astype(kind), name)


def made(nodes: list[Node], constants: list[onnx.TensorProto], side: int = SIDE) -> onnx.ModelProto:
    """Of a picture; the first node is a convolution of it to four channels, `c`."""
    conv = node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1])
    graph = helper.make_graph(
        [conv, *nodes], "made", [value("x", 1, 3, side, side)], [value("y")], constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


W = weights("w", 4, 3, 3, 3)


def checked(model: onnx.ModelProto, shape: tuple[int, int] = (2, 2), **more: object) -> CheckReport:
    network = divide(load_graph(model))
    feeds = picture_inputs(network.graph)
    return check(model, network, shape, fused(network), feeds=feeds, plants=True, **more)


def by_a_hundredth(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: array * np.float32(1.01) if array.dtype == np.float32 else array
        for name, array in feeds.items()
    }


def mean_of_many() -> onnx.ModelProto:
    """What is left of a map without its mean: onnxruntime sums the mean naively."""
    return made(
        [
            node("Add", ["c", "far"], ["d"]),
            node("GlobalAveragePool", ["d"], ["m"]),
            node("Sub", ["d", "m"], ["s"]),
            node("Mul", ["s", "little"], ["y"]),
        ],
        [
            weights("w", 4, 3, 3, 3, scale=1e-3),
            numpy_helper.from_array(np.full((1, 4, 1, 1), 50, np.float32), "far"),
            numpy_helper.from_array(np.array(1e-3, np.float32), "little"),
        ],
        side=512,
    )


def test_float64_decides_where_two_answers_differ() -> None:
    model = mean_of_many()
    feeds = picture_inputs(load_graph(model))
    exact = answer_in_double(model, feeds)
    whole = WholeModel(model).run(feeds)
    assert exact is not None
    assert compare({"y": exact["y"].astype(np.float32)}, whole).max_rel_error > 10 * PLAIN
    report = checked(model)
    assert report.verdict == "ok"
    assert PLAIN < report.tolerance <= 0.01
    assert checked(model, fault=by_a_hundredth).verdict == "different"


def test_infinities_in_the_same_places_are_equal() -> None:
    model = made([node("Relu", ["c"], ["r"]), node("Log", ["r"], ["y"])], [W])
    assert not np.isfinite(WholeModel(model).run(picture_inputs(load_graph(model)))["y"]).all()
    assert checked(model).verdict == "ok"
    assert checked(model, fault=by_a_hundredth).verdict == "different"


def test_weights_that_are_stored_in_half_precision_are_computed_exactly() -> None:
    model = made([], [weights("half", 4, 3, 3, 3, kind=np.float16)])
    model.graph.node.insert(0, node("Cast", ["half"], ["w"], to=TensorProto.FLOAT))
    model.graph.node[1].output[0] = "y"
    assert tolerance(load_graph(model)) == PLAIN
    half = made(
        [node("Cast", ["c"], ["h"], to=TensorProto.FLOAT16), node("Relu", ["h"], ["y"])], [W]
    )
    half.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    assert tolerance(load_graph(half)) == HALF


def saturated(*, deep: bool) -> onnx.ModelProto:
    """A classifier that is sure of everything; a `deep` one has a map inside that can be seen."""
    more = [node("Conv", ["r", "v"], ["d"]), node("Relu", ["d"], ["last"])]
    return made(
        [
            node("Relu", ["c"], ["r" if deep else "last"]),
            *(more if deep else []),
            node("GlobalAveragePool", ["last"], ["p"]),
            node("Flatten", ["p"], ["f"]),
            node("Mul", ["f", "much"], ["logits"]),
            node("Softmax", ["logits"], ["y"], axis=1),
        ],
        [W, weights("v", 4, 4, 1, 1), numpy_helper.from_array(np.array(1e4, np.float32), "much")],
    )


def test_maps_inside_are_compared_where_outputs_hide_faults() -> None:
    report = checked(saturated(deep=True))
    assert report.verdict == "ok"
    assert report.inside
    assert report.as_json()["maps_inside"] == report.inside
    assert checked(saturated(deep=True), fault=by_a_hundredth).verdict == "different"


def test_a_check_that_sees_nothing_says_so() -> None:
    report = checked(saturated(deep=False))
    assert report.verdict == "cannot judge"
    assert not report.ok
    assert report.as_json()["verdict"] == "cannot judge"
    assert checked(saturated(deep=False), fault=by_a_hundredth).verdict == "cannot judge"


def ranked() -> onnx.ModelProto:
    """Picks the four largest of many nearly equal values, and computes on with what is there."""
    return made(
        [
            node("Reshape", ["c", "flat"], ["tokens"]),
            node("ReduceMax", ["tokens"], ["scores"], axes=[1], keepdims=0),
            node("TopK", ["scores", "four"], ["best", "places"], axis=1),
            node("Unsqueeze", ["places", "one"], ["wide"]),
            node("Expand", ["wide", "each"], ["all"]),
            node("GatherElements", ["tokens", "all"], ["y"], axis=2),
        ],
        [
            W,
            numpy_helper.from_array(np.array([1, 4, -1]), "flat"),
            numpy_helper.from_array(np.array([4]), "four"),
            numpy_helper.from_array(np.array([1]), "one"),
            numpy_helper.from_array(np.array([1, 4, 4]), "each"),
        ],
    )


def test_ranked_outputs_are_judged_by_what_enters_the_ranking() -> None:
    assert checked(ranked()).verdict == "ok"
    assert checked(ranked(), fault=by_a_hundredth).verdict == "different"


@pytest.mark.parametrize("grid", [(1, 2), (3, 3)])
def test_a_fault_in_one_tile_is_noticed_whatever_the_grid(grid: tuple[int, int]) -> None:
    model = made([node("Relu", ["c"], ["y"])], [W])
    assert checked(model, grid).noticed


def rounded(model: onnx.ModelProto, name: str, kind: int, scale: float, zero: int = 0) -> str:
    """A tensor that is quantised and dequantised again; its name."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    parts = [f"{name}_scale", f"{name}_zero"]
    model.graph.initializer.append(numpy_helper.from_array(np.array(scale, np.float32), parts[0]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(zero, dtype), parts[1]))
    model.graph.node.append(node("QuantizeLinear", [name, *parts], [f"{name}_q"]))
    model.graph.node.append(node("DequantizeLinear", [f"{name}_q", *parts], [f"{name}_d"]))
    return f"{name}_d"


def quantised(kind: int, steps: int) -> onnx.ModelProto:
    """Three convolutions of which each map is rounded to so many steps."""
    model = made([], [W, weights("v", 4, 4, 3, 3), weights("u", 4, 4, 3, 3)])
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 21))
    last = rounded(model, "c", kind, 4 / steps)
    for place, name in enumerate(("v", "u")):
        model.graph.node.append(node("Conv", [last, name], [f"m{place}"], pads=[1, 1, 1, 1]))
        last = rounded(model, f"m{place}", kind, 8 / steps)
    model.graph.node[-1].output[0] = "y"
    return model


@pytest.mark.parametrize(
    ("kind", "steps"), [(TensorProto.INT16, 65536), (TensorProto.UINT16, 65536)]
)
def test_a_network_of_sixteen_bits_may_be_a_few_steps_off(kind: int, steps: int) -> None:
    model = quantised(kind, steps)
    assert tolerance(load_graph(model)) == SIXTEEN
    assert checked(model).verdict == "ok"
    assert checked(model, fault=by_a_hundredth).verdict == "different"


def test_a_softmax_of_quantised_numbers_is_judged_by_float64() -> None:
    """onnxruntime computes it in integers, and is a step off, in one way or another."""
    model = made([], [W, numpy_helper.from_array(np.array([1, 4, SIDE * SIDE]), "flat")])
    scores = rounded(model, "c", TensorProto.UINT8, 0.02, 128)
    model.graph.node.append(node("Reshape", [scores, "flat"], ["r"]))
    model.graph.node.append(node("Transpose", ["r"], ["t"], perm=[0, 2, 1]))
    model.graph.node.append(node("Softmax", ["t"], ["s"], axis=2))
    rounded(model, "s", TensorProto.UINT8, 1 / 255)
    model.graph.node[-1].output[0] = "y"
    network = divide(load_graph(model))
    feeds = picture_inputs(network.graph)
    optimised = WholeModel(model).run(feeds)
    assert compare(WholeModel(model, optimised=False).run(feeds), optimised).max_rel_error > 1e-3
    exact = answer_in_double(model, feeds)
    assert exact is not None
    report = checked(model)
    assert report.verdict == "ok"
    assert (
        checked(model, fault=lambda parts: {k: np.flip(v, -1) for k, v in parts.items()}).verdict
        == "different"
    )
