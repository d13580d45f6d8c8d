"""Networks with attention, in eight bits of every form and in half precision, are split like those
in float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from benchmarks.exports.__main__ import split_share
from models.check.check import check, fused
from models.check.tolerance import AVERAGED, HALF, PLAIN, SIGNED, told
from models.cut.units import divide
from models.graph.graph import Graph
from models.onnx_file.importer import load_graph
from tests.models.attention import Net
from tests.models.faults import misread
from tests.models.precisions import FORMS, QUANTISED, network_in

# The sums of a product of integers and what is quantised with one scale are the same in any tile.
EXACT = frozenset({"QDQ u8", "QOperator"})
LIMITS = {"QDQ s8": {PLAIN, SIGNED}, "half": {HALF}, "dynamic": {PLAIN, AVERAGED}}


@pytest.mark.parametrize(
    ("form", "name"),
    [
        (form, name) if (row + column) % 2 else pytest.param(form, name, marks=pytest.mark.slow)
        for row, form in enumerate(FORMS)
        for column, name in enumerate(QUANTISED)
    ],
)
def test_every_form_is_split_and_agrees(form: str, name: str) -> None:
    model = network_in(form, name)
    network = divide(load_graph(model))
    assert split_share(network) >= 0.99
    report = check(model, network, (3, 1), fused(network))
    assert report.ok, report
    if form in EXACT:
        assert report.comparison.max_abs_error == 0
    assert report.tolerance in LIMITS.get(form, {PLAIN})
    assert (report.tolerance == PLAIN) is (told(report.tolerance) == f"limit {PLAIN:g}")


@pytest.mark.parametrize("name", ["class token", "windows"])
def test_a_network_of_one_tile_agrees(name: str) -> None:
    """onnxruntime differs from itself, and what is not cut is one of its answers."""
    model = network_in("QDQ u8", name)
    network = divide(load_graph(model))
    report = check(model, network, (1, 1), fused(network))
    assert report.noise > 100 * report.tolerance
    assert report.ok, report


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["class token", "windows", "detector"])
def test_a_damaged_tile_is_found(form: str, name: str) -> None:
    model = network_in(form, name)
    network = divide(load_graph(model))

    def damaged(parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {key: np.asarray(np.flip(part)) for key, part in parts.items()}

    assert not check(model, network, (3, 1), fused(network), fault=damaged).ok


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize("form", FORMS)
def test_quantised_rows_roll(form: str) -> None:
    """Whatever lies between the rows that are taken and where they are joined."""
    assert operators(load_graph(network_in(form, "shifted windows"))).count("imbrex.Roll") == 2


def rolling(axis: int) -> onnx.ModelProto:
    """Rows (1, 4, 8, 6), dequantised with a scale for each index of `axis`, and rolled."""
    net = Net(1, 3, 8, 6)
    x = net.conv("x", 3, 4, 3)
    size = (1, 4, 8, 6)[axis]
    scales = net.constant(np.linspace(0.01, 0.05, size, dtype=np.float32))
    points = net.constant(np.arange(100, 100 + size, dtype=np.uint8))
    narrow = net.add("QuantizeLinear", x, scales, points, axis=axis)
    wide = net.add("DequantizeLinear", narrow, scales, points, axis=axis)
    last = net.add("Slice", wide, net.ints(3), net.ints(8), net.ints(2))
    first = net.add("Slice", wide, net.ints(0), net.ints(3), net.ints(2))
    return net.model(net.conv(net.add("Concat", last, first, axis=2), 4, 4, 3))


@pytest.mark.parametrize(("axis", "rolls"), [(1, True), (3, True), (2, False)])
def test_scales_of_rows_do_not_roll(axis: int, rolls: bool) -> None:
    model = rolling(axis)
    network = divide(load_graph(model))
    assert ("imbrex.Roll" in operators(network.graph)) is rolls
    report = check(model, network, (3, 1), fused(network))
    assert report.comparison.max_rel_error <= PLAIN


# Operators of quantised networks, with a form and a network that has them.
MISREAD = {
    "QuantizeLinear": ("QDQ u8", "class token"),
    "DequantizeLinear": ("QDQ u8", "windows"),
    "QLinearMatMul": ("QOperator", "tokens"),
    "MatMulInteger": ("dynamic", "tokens"),
    "com.microsoft.QLinearSoftmax": ("QOperator", "tokens"),
    "com.microsoft.QLinearConcat": ("QOperator", "class token"),
    "com.microsoft.QLinearGlobalAveragePool": ("QOperator", "gates"),
    "com.microsoft.QLinearAdd": ("QOperator", "class token"),
    "QLinearConv": ("QOperator", "detector"),
    "ConvInteger": ("dynamic", "detector"),
    "imbrex.Roll": ("QOperator", "shifted windows"),
}


@pytest.mark.parametrize("op", MISREAD)
def test_a_misread_row_is_noticed(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network_in(*MISREAD[op])
    misread(op, monkeypatch)
    network = divide(load_graph(model))
    assert op in operators(network.graph)
    assert not check(model, network, (3, 1), fused(network)).ok
