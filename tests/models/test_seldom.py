"""Operators in forms that exporters seldom write: equal, or whole on one device, never wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from models.check.check import check, fused
from models.cut.partial import summed_input
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from protos.errors import BadRequest
from tests.models.test_unfolded import model, require_split

FLOAT, HALF, UINT8 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8


def network_of(
    nodes: list,
    given: dict[str, np.ndarray],
    shape: tuple[int, ...],
    kind: int = FLOAT,
    opset: int = 17,
    made: int = FLOAT,
) -> ModelProto:
    """Nodes from `x` to `y`."""
    graph = helper.make_graph(
        nodes,
        "seldom",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", made, None)],
        [numpy_helper.from_array(array, name) for name, array in given.items()],
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def error_of(made: ModelProto, tiles: tuple[int, int] = (3, 1), most: float = 1e-5) -> float:
    """The largest error of tiles, relative to the largest value."""
    network = divide(load_graph(made))
    report = check(made, network, tiles, fused(network))
    assert report.ok, report
    return report.comparison.max_abs_error


def splits(made: ModelProto) -> list[bool]:
    return [unit.splits for unit in divide(load_graph(made)).units]


def test_pad_with_a_value_that_is_computed() -> None:
    """As a quantiser writes it: the value is dequantised, from a constant."""
    given = {
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "q": np.array(200, np.uint8),
        "scale": np.array(0.1, np.float32),
        "zero": np.array(0, np.uint8),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["fill"]),
        helper.make_node("Pad", ["conv", "pads", "fill"], ["y"]),
    ]
    require_split(model(nodes, given))


def test_pad_with_a_value_from_the_map() -> None:
    given = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    nodes = [
        helper.make_node("ReduceMax", ["conv"], ["fill"], keepdims=0),
        helper.make_node("Pad", ["conv", "pads", "fill"], ["y"]),
    ]
    require_split(model(nodes, given))


@pytest.mark.parametrize("op", ["InstanceNormalization", "LayerNormalization"])
def test_normalised_halves_whose_squares_are_too_large(op: str) -> None:
    rng = np.random.default_rng(1)
    shape, how = ((8,), {}) if op.startswith("I") else ((8, 20, 16), {"axis": 1})
    given = {
        "w": (rng.standard_normal((8, 3, 3, 3)) * 200).astype(np.float16),
        "scale": np.ones(shape, np.float16),
        "bias": np.zeros(shape, np.float16),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv"], pads=[1] * 4),
        helper.make_node(op, ["conv", "scale", "bias"], ["y"], **how),
    ]
    made = network_of(nodes, given, (1, 3, 20, 16), HALF, made=HALF)
    network = divide(load_graph(made))
    report = check(made, network, (3, 1), fused(network))
    assert report.ok, report
    assert report.comparison.max_abs_error < 0.01


@pytest.mark.parametrize("size", [15, 40, 50])
def test_a_linear_resize_between_integers(size: int) -> None:
    given = {"sizes": np.array([1, 3, size, size])}
    nodes = [
        helper.make_node("Resize", ["x", "", "", "sizes"], ["r"], mode="linear"),
        helper.make_node("Cast", ["r"], ["y"], to=FLOAT),
    ]
    assert error_of(network_of(nodes, given, (1, 3, 20, 20), TensorProto.INT32)) == 0.0


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_mean_variance_normalisation_of_small_values(scale: float) -> None:
    given = {"scale": np.array(scale, np.float32)}
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["small"]),
        helper.make_node("MeanVarianceNormalization", ["small"], ["y"], axes=[0, 2, 3]),
    ]
    error_of(network_of(nodes, given, (1, 3, 16, 16), opset=13))


def test_the_mean_of_integers_is_rounded_once() -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[2, 3]),
        helper.make_node("Cast", ["m"], ["y"], to=FLOAT),
    ]
    made = network_of(nodes, {}, (1, 64, 9, 7), TensorProto.INT32)
    assert error_of(made) == 0.0


@pytest.mark.parametrize(("scale", "point"), [(0.2, 10), (0.1, 128)])
def test_a_joined_roll_with_another_scale(scale: float, point: int) -> None:
    given = {
        **{key: np.array([value]) for key, value in (("two", 2), ("three", 3), ("zero", 0))},
        "eight": np.array([8]),
        "scale": np.array(scale, np.float32),
        "point": np.array(point, np.uint8),
        "own": np.array(0.1, np.float32),
        "middle": np.array(128, np.uint8),
    }
    joined = ["scale", "point", "last", "own", "middle", "first", "own", "middle"]
    nodes = [
        helper.make_node("Slice", ["x", "three", "eight", "two"], ["last"]),
        helper.make_node("Slice", ["x", "zero", "three", "two"], ["first"]),
        helper.make_node("QLinearConcat", joined, ["j"], domain="com.microsoft", axis=2),
        helper.make_node("DequantizeLinear", ["j", "scale", "point"], ["y"]),
    ]
    assert error_of(network_of(nodes, given, (1, 4, 8, 8), UINT8)) == 0.0


def test_a_quantised_pool_with_channels_last_runs_whole() -> None:
    given = {"scale": np.array(0.1, np.float32), "point": np.array(128, np.uint8)}
    inputs = ["x", "scale", "point", "scale", "point"]
    how = {"kernel_shape": [3, 3], "pads": [1] * 4, "channels_last": 1}
    nodes = [
        helper.make_node("QLinearAveragePool", inputs, ["p"], domain="com.microsoft", **how),
        helper.make_node("DequantizeLinear", ["p", "scale", "point"], ["y"]),
    ]
    assert error_of(network_of(nodes, given, (1, 8, 8, 4), UINT8)) == 0.0


@pytest.mark.parametrize("like", ["conv", "other"])
def test_a_scalar_cast_like_a_tensor(like: str) -> None:
    """As functions of PyTorch's exporter are written."""
    nodes = [
        helper.make_node("CastLike", ["two", like], ["c"]),
        helper.make_node("Mul", ["conv", "c"], ["y"]),
    ]
    made = model(nodes, {"two": np.array(2), "other": np.zeros((3, 1), np.float32)})
    graph = load_graph(made)
    assert {node.op for node in graph.nodes} == {"Conv", "Mul"}
    require_split(made)


def test_a_recurrent_layer_without_its_first_output() -> None:
    rng = np.random.default_rng(2)
    given = {
        "w": rng.standard_normal((1, 18, 4)).astype(np.float32),
        "r": rng.standard_normal((1, 18, 6)).astype(np.float32),
    }
    nodes = [
        helper.make_node("GRU", ["x", "w", "r"], ["", "h"], hidden_size=6),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    error_of(network_of(nodes, given, (5, 1, 4), opset=14))


def test_weights_that_are_quantised_in_the_file_do_not_prevent_splitting() -> None:
    """As for training with quantisation: float weights, a QuantizeLinear, a DequantizeLinear."""
    rng = np.random.default_rng(3)
    given = {
        "conv_w": rng.standard_normal((64, 3, 3, 3)).astype(np.float32),
        "shape": np.array([1, 64, 256]),
        "scale": np.array(0.01, np.float32),
        "zero": np.array(0, np.int8),
        "w": rng.integers(-100, 100, (64, 128), np.int8).astype(np.float32) / 100,
    }
    nodes = [
        helper.make_node("Conv", ["x", "conv_w"], ["conv"], pads=[1] * 4),
        helper.make_node("Reshape", ["conv", "shape"], ["flat"]),
        helper.make_node("Transpose", ["flat"], ["tokens"], perm=[0, 2, 1]),
        helper.make_node("QuantizeLinear", ["w", "scale", "zero"], ["narrow"]),
        helper.make_node("DequantizeLinear", ["narrow", "scale", "zero"], ["weights"]),
        helper.make_node("MatMul", ["tokens", "weights"], ["y"]),
    ]
    made = network_of(nodes, given, (1, 3, 16, 16))
    assert all(splits(made))
    error_of(made)


def test_a_sum_over_parts_needs_a_single_picture() -> None:
    rng = np.random.default_rng(4)
    given = {"w": rng.random((256, 10), np.float32), "shape": np.array([1, 256])}
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w"], ["y"]),
    ]
    graph = load_graph(network_of(nodes, given, (4, 64)))
    assert summed_input(graph, graph.nodes) is None


def branching(condition: str, *, sound: bool = True) -> ModelProto:
    """An If as TorchScript writes `squeeze`; in one branch is another If."""
    info = [helper.make_tensor_value_info("made", FLOAT, None)]
    scaled = [numpy_helper.from_array(np.array(3.0, np.float32), "factor")]
    double = [helper.make_node("Add", ["conv", "conv"], ["made"])]
    inner = helper.make_node(
        "If",
        ["never"],
        ["made"],
        then_branch=helper.make_graph(double, "then", [], info),
        else_branch=helper.make_graph(
            [helper.make_node("Mul", ["conv", "factor"], ["made"])], "else", [], info, scaled
        ),
    )
    steps = [helper.make_node("Squeeze" if sound else "Sueeze", ["conv"], ["made"])]
    nodes = [
        helper.make_node("Shape", ["conv"], ["shape"]),
        helper.make_node("Gather", ["shape", "last"], ["size"]),
        helper.make_node(condition, ["size", "ten"], ["is_ten"]),
        helper.make_node(
            "If",
            ["is_ten"],
            ["taken"],
            then_branch=helper.make_graph([inner], "then", [], info),
            else_branch=helper.make_graph(steps, "else", [], info),
        ),
        helper.make_node("Relu", ["taken"], ["y"]),
    ]
    given = {"last": np.array(3), "ten": np.array(10), "never": np.array(False)}
    return model(nodes, given)


def test_an_if_whose_condition_is_known_becomes_its_branch() -> None:
    made = branching("Equal")
    graph = load_graph(made)
    assert [node.op for node in graph.nodes] == ["Conv", "Mul", "Relu"]
    assert all(unit.splits for unit in divide(graph).units)
    require_split(made)


def test_an_if_that_squeezes_a_map_of_several_columns_keeps_it() -> None:
    require_split(branching("Less"))


def test_a_branch_that_is_not_onnx_is_refused() -> None:
    with pytest.raises(BadRequest):
        load_graph(branching("Less", sound=False))


def test_swish_is_divided() -> None:
    made = model([helper.make_node("Swish", ["conv"], ["y"])], {})
    made.opset_import[0].version = 24
    made.ir_version = 10
    assert all(splits(made))


@pytest.mark.parametrize("op", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat"])
def test_fused_dynamic_quantisation_of_onnxruntime_is_divided(op: str) -> None:
    rng = np.random.default_rng(5)
    given = {
        "w": rng.integers(0, 255, (24, 16), np.uint8),
        "scale": rng.random(16).astype(np.float32),
        "point": np.array(120, np.uint8),
        "bias": rng.random(16).astype(np.float32),
    }
    dynamic = helper.make_node(
        op, ["x", "w", "scale", "point", "bias"], ["y"], domain="com.microsoft"
    )
    nodes = [dynamic]
    if op == "MatMulIntegerToFloat":
        inputs = ["q", "w", "s", "scale", "p", "point", "bias"]
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "p"]),
            helper.make_node(op, inputs, ["y"], domain="com.microsoft"),
        ]
    made = network_of(nodes, given, (1, 3, 40, 24))
    assert all(splits(made)[-1:])
    error_of(made)


def test_a_function_of_another_opset_is_inlined() -> None:
    inner = helper.make_function(
        "own",
        "Half",
        ["a"],
        ["b"],
        [helper.make_node("Relu", ["a"], ["b"])],
        [helper.make_opsetid("", 16)],
    )
    made = model([helper.make_node("Half", ["conv"], ["y"], domain="own")], {})
    made.functions.append(inner)
    made.opset_import.append(helper.make_opsetid("own", 1))
    loaded = onnx.ModelProto.FromString(made.SerializeToString())
    from models.onnx_file.model_file import without_functions

    inlined = without_functions(loaded, 1000)
    assert [node.op_type for node in inlined.graph.node] == ["Conv", "Relu"]


@pytest.mark.parametrize("read", [True, False])
def test_a_dropout_in_training_is_not_divided_nor_removed(read: bool) -> None:
    """It draws numbers for all of its input."""
    given = {"ratio": np.array(0.5, np.float32), "yes": np.array(True)}
    last = "d" if read else "y"
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Dropout", ["a", "ratio", "yes"], [last], seed=3),
    ]
    nodes += [helper.make_node("Neg", ["d"], ["y"])] if read else []
    (unit,) = (
        unit
        for unit in divide(load_graph(network_of(nodes, given, (1, 3, 16, 16)))).units
        if "Dropout" in [node.op for node in unit.nodes]
    )
    assert not unit.splits


def test_a_spectrum_of_one_side_has_its_size() -> None:
    given = {"step": np.array(8), "length": np.array(16)}
    nodes = [
        helper.make_node("STFT", ["x", "step", "", "length"], ["s"]),
        helper.make_node("Neg", ["s"], ["y"]),
    ]
    made = network_of(nodes, given, (1, 64, 1))
    assert load_graph(made).shape("y") == (1, 7, 9, 2)
    assert error_of(made) <= 1e-5
