import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.catalogue.catalogue import load
from models.cut.tiles import (
    even_spans,
    grain,
    grid,
    on_map,
    places,
    scaled_mark,
    tile_boxes,
    weighted_spans,
)
from models.cut.units import Network, divide, groups_rows
from models.graph.graph import ROWS
from models.onnx_file.importer import load_graph
from models.tensors.boxes import Box, covers_exactly
from tests.models.attention import NETWORKS, Net, windows


@pytest.fixture(scope="module")
def networks() -> dict[str, Network]:
    names = ("vgg16-conv", "resnet50", "yolov2")
    return {name: divide(load_graph(load(name).proto, name)) for name in names}


def test_vgg_has_one_unit_per_convolution_with_its_pool(networks: dict[str, Network]) -> None:
    units = networks["vgg16-conv"].units
    assert [unit.name for unit in units[:3]] == ["conv1_1", "conv1_2", "conv2_1"]
    assert len(units) == 13
    assert [len(unit.nodes) for unit in units[:3]] == [2, 3, 2]
    assert all(unit.splits for unit in units)


def test_a_residual_block_is_one_unit_between_marks(networks: dict[str, Network]) -> None:
    network = networks["resnet50"]
    assert len(network.units) == 54  # 53 convolutions and the head
    assert len(network.marks) - 1 == 1 + 16 + 1
    assert all(len(network.boundaries[mark].live) == 1 for mark in network.marks[:-1])
    assert not network.units[-1].splits


def test_the_passthrough_lives_across_boundaries(networks: dict[str, Network]) -> None:
    network = networks["yolov2"]
    assert len(network.marks) == len(network.units) + 1
    widest = max(network.boundaries, key=lambda each: len(each.live))
    assert len(widest.live) == 2


def test_tiles_cover_every_output_of_a_block_exactly(networks: dict[str, Network]) -> None:
    for network in networks.values():
        shape = network.graph.shape
        stops = [i for i in network.marks if i > 0 and network.is_divisible(0, i)]
        for stop in stops:
            tiles = grid(network, 0, stop, 3, 2)
            owned = [tile_boxes(network, 0, stop, tile) for tile in tiles]
            for name in network.outputs(0, stop):
                parts = [boxes[name] for boxes in owned if name in boxes]
                assert covers_exactly(parts, Box.whole(shape(name)))


@given(st.integers(1, 300), st.lists(st.floats(0, 10), min_size=1, max_size=9))
def test_weighted_spans_sum_to_the_size(size: int, weights: list[float]) -> None:
    if sum(weights) <= 0:
        weights = [1.0, *weights]
    spans = weighted_spans(size, weights)
    assert sum(len(span) for span in spans) == size
    total = sum(weights)
    for span, weight in zip(spans, weights, strict=True):
        assert abs(len(span) - size * weight / total) < 1


@given(st.integers(0, 300), st.integers(1, 20))
def test_even_spans_differ_by_at_most_one(size: int, parts: int) -> None:
    lengths = [len(span) for span in even_spans(size, parts)]
    assert sum(lengths) == size
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(1, 500), st.integers(1, 500), st.data())
def test_marks_are_scaled_to_the_nearest(size: int, other: int, data: st.DataObject) -> None:
    marks = data.draw(st.lists(st.integers(0, size), min_size=1, max_size=9))
    nearest = [round(Fraction(mark * other, size)) for mark in marks]
    assert [scaled_mark(mark, size, other) for mark in marks] == nearest
    assert scaled_mark(np.array(marks), size, other).tolist() == nearest


@given(st.integers(1, 30_000), st.integers(1, 20))
def test_long_lists_are_divided_at_few_places(size: int, parts: int) -> None:
    assert places(size) <= 1024
    assert grain(size) == 1 or size > 1024
    spans = on_map(size, even_spans(places(size), parts))
    assert spans[0].start == 0
    assert spans[-1].stop == size
    assert all(one.stop == other.start for one, other in itertools.pairwise(spans))
    assert all(span.start % grain(size) == 0 or span.start == size for span in spans)


@pytest.mark.parametrize(("size", "kept"), [(400, 1), (1600, 5), (6400, 20), (2401, 7), (1031, 3)])
def test_grains_divide_a_list_evenly_if_some_do(size: int, kept: int) -> None:
    assert grain(size) == kept


@pytest.mark.parametrize("shift", [0, 2])
def test_units_begin_where_windows_begin_and_where_they_end(shift: int) -> None:
    network = divide(load_graph(windows(16, 4, shift), "windows"))
    begun = [unit for unit in network.units if groups_rows(network.graph, unit.nodes[0])]
    made = [network.graph.size(unit.nodes[2].outputs[0], ROWS) for unit in begun]
    assert made == [4 * 4, 16]  # windows, and the map's rows


@pytest.mark.parametrize("name", ["tokens", "attention on a map", "detector"])
def test_lists_that_become_rows_are_no_windows(name: str) -> None:
    graph = divide(load_graph(NETWORKS[name](), name)).graph
    assert not any(groups_rows(graph, node) for node in graph.nodes)


def test_a_list_for_what_needs_all_of_it_is_made_there() -> None:
    net = Net(1, 3, 16, 16)
    fine, coarse = net.conv("x", 3, 8, 3), net.conv("x", 3, 8, 3, 2)
    lists = [net.tokens(fine, 8, 256), net.tokens(coarse, 8, 64)]
    scores = [net.reshape(net.linear(each, 8, 1), 1, -1) for each in lists]
    most = net.several("TopK", net.add("Concat", *scores, axis=1), net.ints(5), count=2)
    network = divide(load_graph(net.model(net.add("Relu", most[0]))))
    (unit,) = (unit for unit in network.units if any(node.op == "TopK" for node in unit.nodes))
    assert [node.op for node in unit.nodes][:2] == ["Concat", "TopK"]
