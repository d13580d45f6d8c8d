"""The tables against their definition, on random networks and clusters."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from coordinator.costs.rates import RateCosts
from coordinator.planning.geometry.blocks import geometry_of
from coordinator.planning.geometry.tile_shapes import shapes_of
from coordinator.planning.planners.aofl import options_by_count
from coordinator.planning.search.division_options import grids, tiled
from coordinator.planning.search.tables import Tables, ranked, tables_of
from models.cut.tiles import MapTile
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from models.operators.work import tile_works
from models.tensors.boxes import Box
from protos.errors import Infeasible
from protos.wire.facts import ONNXRUNTIME
from tests.examples import examples
from tests.models.networks import networks
from tests.planning.support import (
    CLUSTERS,
    PERSISTENT,
    block_s,
    cluster,
    clusters,
    device,
    real,
    small,
)

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def every_option(tables: Tables):
    return [option for options in options_by_count(tables) for option in options]


def assert_equal_to_definition(network: Network, tables: Tables) -> int:
    compared = 0
    for option in every_option(tables):
        for start, end in zip(*np.nonzero(np.isfinite(option.seconds)), strict=True):
            exact = block_s(network, tables, option, start, end)
            assert option.seconds[start, end] == pytest.approx(exact, rel=1e-9), (option, start)
            compared += 1
    return compared


@settings(max_examples=examples(25), suppress_health_check=SLOW)
@given(networks(), clusters())
def test_tables_cost_what_the_definition_costs(model, some) -> None:
    graph = load_graph(model)
    network = divide(graph)
    tables = tables_of(network, some)
    one_size = {graph.shape(name)[2:] for name in graph.outputs}
    for option in every_option(tables):
        for start, end in zip(*np.nonzero(np.isfinite(option.seconds)), strict=True):
            exact = block_s(network, tables, option, start, end)
            # A tile too small to own a row of a second, smaller output is costed a little high.
            assert option.seconds[start, end] >= exact * (1 - 1e-9)
            if len(one_size) == 1:
                assert option.seconds[start, end] == pytest.approx(exact, rel=1e-9)


def test_residual_blocks_and_concats_cost_what_the_definition_costs() -> None:
    network = small()
    compared = assert_equal_to_definition(network, tables_of(network, CLUSTERS["unlike"]))
    assert compared > 50


def test_a_passthrough_enters_late_blocks_and_leaves_early_ones() -> None:
    network = real("yolov2")
    tables = tables_of(network, cluster(4.0, 3.0))
    balanced = options_by_count(tables)[1][0]
    compared = 0
    for start in range(8, tables.last, 3):
        for end in range(start + 1, len(tables.marks), 4):
            exact = block_s(network, tables, balanced, start, end)
            if np.isfinite(balanced.seconds[start, end]):
                assert balanced.seconds[start, end] == pytest.approx(exact, rel=1e-9)
                compared += 1
    assert compared > 5


def test_unsplit_layers_have_no_split_option() -> None:
    network = real("vgg16")
    tables = tables_of(network, CLUSTERS["alike"])
    first_whole = next(i for i, unit in enumerate(network.units) if not unit.splits)
    for options in options_by_count(tables)[1:]:
        for option in options:
            assert np.isinf(option.seconds[:, first_whole + 1 :]).all()
            assert np.isfinite(option.seconds[0, 1])


def test_geometry_is_computed_once_per_network() -> None:
    network = small()
    assert geometry_of(network) is geometry_of(network)
    first = tables_of(network, CLUSTERS["alike"])
    assert tables_of(network, CLUSTERS["alike"]) is first
    again = tables_of(network, CLUSTERS["unlike"])
    assert again is not first
    assert again.geometry is first.geometry


def test_geometry_does_not_keep_its_network_alive() -> None:
    import gc
    import weakref

    model = small().graph
    network = divide(model)
    geometry_of(network)
    tables_of(network, CLUSTERS["one"])
    gone = weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None


def test_devices_are_ranked_by_speed_then_bandwidth() -> None:
    slow, fast = device("slow", 1.0), device("fast", 2.0)
    near = device("near", 2.0, link=type(PERSISTENT)(1e9))
    assert [d.name for d in ranked((slow, fast, near))] == ["near", "fast", "slow"]


def test_no_device_is_infeasible() -> None:
    with pytest.raises(Infeasible, match="no device"):
        Tables(geometry_of(small()), cluster())


def test_a_tile_costs_more_the_more_rows_it_has() -> None:
    network = real("resnet50")
    tables = tables_of(network, CLUSTERS["unlike"])
    for end, splits in enumerate(tables.geometry.splits):
        if splits is not None:
            begins, ends, byte_begins, byte_ends = tables.strips_s(splits, end)
            for each in (begins, ends, byte_begins[None], byte_ends[None]):
                assert (np.diff(each[:, :, 1:-1], axis=2) >= 0).all()


def test_grids_of_one_column_are_equal_strips() -> None:
    tables = tables_of(small(), CLUSTERS["no host"])
    column, *_ = grids(tables, [4])[0]
    tiles = [tile for _, tile in column.shares(0, 1) if isinstance(tile, MapTile)]
    assert {len(tile.rows) for tile in tiles} == {tables.geometry.sizes[1][0] // 4}
    compute, transfers = tables.tiles_s(1, tiles, range(4))
    expected = compute.max(axis=1) + transfers.sum(axis=1)
    assert column.seconds[0, 1] == pytest.approx(expected[0])


def test_bands_and_uneven_grids_cost_what_the_definition_costs() -> None:
    network, some = small(), CLUSTERS["unlike"]
    tables = tables_of(network, some)
    subsets = [(0, 1), (1, 3, 4), (0, 2, 3, 4, 5), range(6)]
    placed = [(who, shape) for who in subsets for shape in shapes_of(len(who))]
    weights = [device.speed for device in tables.devices]
    compared = 0
    for option in tiled(tables, placed, weights):
        for start, end in zip(*np.nonzero(np.isfinite(option.seconds)), strict=True):
            exact = block_s(network, tables, option, start, end)
            assert option.seconds[start, end] == pytest.approx(exact, rel=1e-9)
            compared += 1
    assert compared > 200


def test_each_block_is_costed_by_the_engine_that_is_faster_at_it() -> None:
    network = real("yolov3-tiny")
    dense = RateCosts(4.0, rate_1x1=0.25, run_s=1e-4)
    both = replace(dense, others=(RateCosts(2.0, run_s=1e-4, engine="other"),))
    some = CLUSTERS["alike"]
    one, two = (
        tables_of(
            network, replace(some, devices=tuple(replace(d, costs=costs) for d in some.devices))
        )
        for costs in (dense, both)
    )
    chosen = set()
    for option in options_by_count(two)[-1]:
        for start, end in zip(*np.nonzero(np.isfinite(option.seconds)), strict=True):
            exact = block_s(network, two, option, start, end)
            assert exact * (1 - 1e-9) <= option.seconds[start, end] <= exact * 1.05
            units = (two.geometry.boundaries[start], two.geometry.boundaries[end])
            boxes = {name: Box.whole(network.graph.shape(name)) for name in network.outputs(*units)}
            works = tile_works(network.graph, network.nodes(*units), boxes)
            chosen.add(both.fastest(works).engine)
    assert chosen == {ONNXRUNTIME, "other"}
    assert (two.compute_s <= one.compute_s).all()
    assert (two.compute_s < one.compute_s).any()
