"""Nearest resizes pick what onnxruntime picks; where rounding decides, they run whole."""

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from models.check.check import check, fused
from models.cut.units import divide
from models.onnx_file.importer import load_graph

COORDINATES = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resized(coordinates: str, rounding: str, rows: int, to: int) -> onnx.ModelProto:
    """A map of so many rows, resized to so many others."""
    constants = {
        "region": np.zeros(0, np.float32),
        "scales": np.zeros(0, np.float32),
        "sizes": np.array([1, 2, to, 5]),
    }
    node = helper.make_node(
        "Resize",
        ["x", *constants],
        ["y"],
        name="resize",
        mode="nearest",
        coordinate_transformation_mode=coordinates,
        nearest_mode=rounding,
    )
    graph = helper.make_graph(
        [node],
        "resized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, rows, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, to, 5])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)


@settings(max_examples=40, derandomize=True)
@given(
    st.sampled_from(COORDINATES),
    st.sampled_from(ROUNDINGS),
    st.integers(1, 30),
    st.integers(1, 60),
)
@example("asymmetric", "round_prefer_ceil", 7, 8)
@example("asymmetric", "round_prefer_floor", 22, 12)
@example("half_pixel", "round_prefer_floor", 14, 19)
@example("half_pixel", "round_prefer_ceil", 14, 57)
def test_a_tile_picks_what_the_whole_picks(
    coordinates: str, rounding: str, rows: int, to: int
) -> None:
    model = resized(coordinates, rounding, rows, to)
    network = divide(load_graph(model))
    assert check(model, network, (3, 2), fused(network)).comparison.max_abs_error == 0.0


@pytest.mark.parametrize(
    ("coordinates", "rounding", "rows", "to"),
    [
        ("asymmetric", "round_prefer_ceil", 7, 8),  # 4 / (8 / 7): 3.5 or just below
        ("half_pixel", "round_prefer_floor", 14, 19),
        ("half_pixel_symmetric", "floor", 5, 17),
    ],
)
def test_resize_that_rounding_decides_runs_whole(
    coordinates: str, rounding: str, rows: int, to: int
) -> None:
    [node] = load_graph(resized(coordinates, rounding, rows, to)).nodes
    assert "rounded either way" in node.refusal


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize(("rows", "to"), [(7, 14), (8, 12), (12, 4), (13, 26), (5, 20)])
def test_common_factors_are_divided(coordinates: str, rows: int, to: int) -> None:
    for rounding in ROUNDINGS:
        [node] = load_graph(resized(coordinates, rounding, rows, to)).nodes
        assert not node.refusal
