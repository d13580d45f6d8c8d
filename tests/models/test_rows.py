"""Rows that leave the form of a map - tokens, heads, windows, lists of boxes - are still split."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest

from models.boxes import Box
from models.check import CheckReport, check, fused
from models.graph import ROWS
from models.importer import load_graph
from models.tiles import grid, tile_boxes, whole_map
from models.units import Network, Unit, divide
from models.work import tile_works
from tests.models.attention import detector, vit, windows, yolo_attention

NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "class token": vit,
    "tokens": lambda: vit(class_token=False),
    "attention on a map": yolo_attention,
    "windows": windows,
    "shifted windows": lambda: windows(shift=2),
    "detector": detector,
}


def checked(model: onnx.ModelProto, shape: tuple[int, int] = (3, 1)) -> CheckReport:
    network = divide(load_graph(model))
    return check(model, network, shape, fused(network))


def largest_shares(network: Network, tiles: int = 4) -> list[tuple[str, int, float]]:
    """For each unit its name, its FLOPs, and the largest tile's share of them."""
    found = []
    for k, unit in enumerate(network.units):
        parts = grid(network, k, k + 1, tiles if unit.splits else 1, 1)
        demands = [tile_boxes(network, k, k + 1, part) for part in parts]
        flops = [_flop(network, unit, each) for each in demands if each]
        whole = _flop(network, unit, tile_boxes(network, k, k + 1, whole_map(network, k, k + 1)))
        found.append((unit.name, whole, max(flops) / max(1, whole)))
    return found


def _flop(network: Network, unit: Unit, demand: Mapping[str, Box]) -> int:
    return sum(each.flop for each in tile_works(network.graph, unit.nodes, demand))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("shape", [(3, 1), (2, 2), (7, 1)])
def test_split_answers_agree(name: str, shape: tuple[int, int]) -> None:
    report = checked(NETWORKS[name](), shape)
    assert report.ok, report


@pytest.mark.parametrize("name", NETWORKS)
def test_nearly_all_is_split(name: str) -> None:
    """Each device computes at most 60 % of what a unit is, in units that hold 99 % of the FLOPs."""
    shares = largest_shares(divide(load_graph(NETWORKS[name]())))
    total = sum(flop for _, flop, _ in shares)
    assert sum(flop for _, flop, share in shares if share <= 0.6) >= 0.99 * total, shares


def test_where_rows_lie() -> None:
    graph = load_graph(yolo_attention())
    softmax = next(node for node in graph.nodes if node.op == "Softmax")
    places = [node.inputs[0] for node in graph.nodes if node.op == "Reshape"]
    assert graph.axis(softmax.outputs[0], ROWS) == 2
    assert {graph.axis(name, ROWS) for name in places} == {2, 3}
    assert {graph.shape(name)[3] for name in graph.rows} == {48}
    assert graph.axis(graph.outputs[0], ROWS) == 2


@pytest.mark.parametrize("name", NETWORKS)
def test_a_damaged_tile_is_found(name: str) -> None:
    model = NETWORKS[name]()
    network = divide(load_graph(model))

    def damaged(parts):  # type: ignore[no-untyped-def]
        return {key: part + np.float32(0.01) for key, part in parts.items()}

    assert not check(model, network, (3, 1), fused(network), fault=damaged).ok
