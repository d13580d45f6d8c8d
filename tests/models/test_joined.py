"""Rows of several maps in one list: what follows is done to each, with its own constants."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from models.check.check import CheckReport, check, fused
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from models.rewrite.sink import _Sinking
from tests.models.attention import NETWORKS, Net
from tests.models.precisions import network_in


def checked(model: onnx.ModelProto) -> CheckReport:
    network = divide(load_graph(model))
    return check(model, network, (3, 1), fused(network))


@pytest.mark.parametrize("form", ["QDQ u8", "QDQ s8", "half"])
def test_a_quantised_list_is_joined_last(form: str) -> None:
    graph = load_graph(network_in(form, "detector"))
    (output,) = graph.outputs
    assert [graph.shape(part)[2] for part in graph.joined[output].parts] == [256, 64, 16]


def listed(axis: int, *, of_weights: bool) -> onnx.ModelProto:
    """Tokens (1, 80, 4) of two maps, quantised with a scale for each index of `axis`: these, or
    what is added to them.
    """
    net = Net(1, 3, 8, 8)
    sizes, maps = (64, 16), [net.conv("x", 3, 4, 3), net.conv("x", 3, 4, 3, 2)]
    flat = [net.reshape(each, 1, 4, size) for each, size in zip(maps, sizes, strict=True)]
    tokens = net.add("Transpose", net.add("Concat", *flat, axis=2), perm=[0, 2, 1])
    size = (1, 80, 4)[axis]
    scales = net.constant(np.linspace(0.01, 0.05, size, dtype=np.float32))
    points = net.constant(np.arange(100, 100 + size, dtype=np.uint8))
    if of_weights:
        numbers = np.arange(320, dtype=np.uint16).astype(np.uint8).reshape(1, 80, 4)
        narrow = net.constant(numbers)
    else:
        narrow = net.add("QuantizeLinear", tokens, scales, points, axis=axis)
    wide = net.add("DequantizeLinear", narrow, scales, points, axis=axis)
    return net.model(net.add("Tanh", net.add("Add", tokens, wide)))


@pytest.mark.parametrize("of_weights", [False, True])
@pytest.mark.parametrize("axis", [1, 2])
def test_scales_belong_to_their_rows(axis: int, of_weights: bool) -> None:
    model = listed(axis, of_weights=of_weights)
    (joined,) = load_graph(model).joined.values()
    assert joined.axis == 1
    assert checked(model).ok


def test_a_map_whose_rows_nobody_reads_is_not_computed() -> None:
    """As XCiT's last block adds to all tokens and reads the first."""
    net = Net(1, 3, 8, 8)
    maps = [net.conv("x", 3, 4, 3), net.conv("x", 3, 4, 3, 2)]
    flat = [net.tokens(each, 4, size) for each, size in zip(maps, (64, 16), strict=True)]
    tokens = net.add("Tanh", net.add("Concat", *flat, axis=1))
    first = net.add("Slice", tokens, net.ints(0), net.ints(64), net.ints(1))
    model = net.model(net.add("Neg", first))
    network = divide(load_graph(model))
    assert all(network.outputs(index, index + 1) for index in range(len(network.units)))
    assert [node.op for unit in network.units for node in unit.nodes].count("Tanh") == 1
    assert checked(model).ok


FAULTY = {
    "weights": NETWORKS["detector"],
    "quantised weights": lambda: network_in("QDQ u8", "detector"),
    "scales of rows": lambda: listed(1, of_weights=False),
    "scales of rows of weights": lambda: listed(1, of_weights=True),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_wrong_cut_of_a_constant_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = _Sinking._cut

    def one_off(self: _Sinking, source: str, axis: int, start: int, size: int) -> str:
        return right(self, source, axis, start + (1 if start == 0 else -1), size)

    monkeypatch.setattr(_Sinking, "_cut", one_off)
    assert not checked(FAULTY[name]()).ok
