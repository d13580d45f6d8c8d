"""The halo planner: legal, exact, and better in the simulator than what it starts from."""

from dataclasses import replace

import pytest
from onnx import ModelProto

import coordinator.planning.planners.halo as halo_search
from coordinator.costs.cluster import Cluster, Link
from coordinator.costs.rates import RateCosts
from coordinator.planning.legal import check_plan
from coordinator.planning.planners.halo import halo
from coordinator.planning.search import peer_moves
from coordinator.planning.search.block_costs import Stages
from coordinator.planning.search.block_tiles import Forms
from coordinator.planning.search.recuts import Recuts
from coordinator.planning.search.slots import Slot, SlotForm
from coordinator.planning.search.tables import tables_of
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.named import strategy
from coordinator.tasks.plan import Block, Plan, Tile
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import load_kind
from models.catalogue.catalogue import load
from models.cut.tiles import MapTile
from models.cut.units import Network, divide
from models.graph.graph import CHANNELS, ROWS
from models.onnx_file.builder import NetworkBuilder as Builder
from models.onnx_file.builder import square
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, compare, random_inputs
from models.tensors.boxes import Span
from tests.models.attention import deformable
from tests.planning.run_plan import difference, run_plan
from tests.planning.support import MEMORY, cluster, device, real, small, small_model
from tests.planning.test_planning_work import long_network

NAMES = ("vgg16-conv", "resnet50", "yolov2", "digits")


def pis(count: int) -> Cluster:
    """Cores of a Raspberry Pi 3 on a star of Fast Ethernet."""
    some = cluster(*([1.85] * count), link=Link(93.7e6 / 8, 0.001, 0.002))
    return replace(some, medium="star", uplink=Link(93.7e6 / 8, 0.001))


@pytest.mark.parametrize("name", NAMES)
def test_legal_and_predicted_by_the_simulator(name: str) -> None:
    network, some = real(name), pis(4)
    plan = halo(network, some)
    check_plan(plan, network, some)
    found = simulate(plan, network, some)
    assert plan.predicted_latency_s == pytest.approx(found.latency_s)
    assert plan.traffic == found.traffic
    assert plan.traffic.halo > 0


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("vgg16-conv", 1.2),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("yolov2", 1.2), ("resnet50", 2))
        ),
    ],
)
def test_faster_than_the_published_scheme_on_eight(name: str, least: float) -> None:
    network, some = real(name), pis(8)
    published = simulate(strategy("aofl")(network, some), network, some).latency_s
    assert published / halo(network, some).predicted_latency_s >= least


def test_halo_uses_fewer_devices_where_messages_cost_more_than_they_save() -> None:
    """Many small layers: from all four devices alone it ends at 1.4 times what two take."""
    network, two, four = real("mobilenetv2"), pis(2), pis(4)
    plan = halo(network, four)
    assert len(plan.devices) < 4
    assert plan.predicted_latency_s <= halo(network, two).predicted_latency_s * 1.05
    assert {each.device for each in plan.unused} == {d.id for d in four.devices} - {*plan.devices}


def test_halo_begins_with_the_cuts_of_the_dynamic_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, some = long_network(12), cluster(*[1.0] * 4, link=Link(1e8, 0.005))
    monkeypatch.setattr(peer_moves, "_EDGE_ROWS", ())
    monkeypatch.setattr(halo_search, "_MUCH", 1.0)
    monkeypatch.setattr(halo_search, "EFFORT", 1)
    short = halo(network, some)
    check_plan(short, network, some)
    monkeypatch.setattr(Recuts, "drafts", lambda recuts, form: iter(()))
    every = halo(network, some)
    assert len(short.blocks) < 0.6 * len(every.blocks)
    assert short.predicted_latency_s < every.predicted_latency_s


def test_several_cuts_are_changed_at_once_where_no_single_one_gains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, some = real("squeezenet"), cluster_of(load_kind("pi5-gbe"), 4)
    recut = halo(network, some)
    check_plan(recut, network, some)
    monkeypatch.setattr(Recuts, "moves", lambda recuts, slots, index: iter(()))
    assert recut.predicted_latency_s < 0.995 * halo(network, some).predicted_latency_s


def test_parts_of_two_drafts_make_others_wherever_both_cut() -> None:
    rows, sums = SlotForm((0, 1), "rows"), SlotForm((0, 1), "inputs")
    one = (Slot(0, 2, rows, peers=True), Slot(2, 5, rows, peers=True), Slot(5, 6, rows, peers=True))
    other = (Slot(0, 1, rows, peers=True), Slot(1, 2, sums, peers=True), Slot(2, 6, rows))
    first, second = peer_moves.crossed(one, other)
    assert first == (one[0], other[2])
    # Partial sums are added up by the host.
    assert second == (*other[:2], replace(one[1], peers=False), one[2])
    assert not [*peer_moves.crossed(one, one)]
    assert not [*peer_moves.crossed(one, (Slot(0, 6, rows),))]


def test_crossing_finds_plans_that_the_moves_of_a_block_miss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, some = real("resnet18"), cluster_of(load_kind("pi4-gbe"), 4)
    plan = halo(network, some)
    check_plan(plan, network, some)
    monkeypatch.setattr(halo_search, "crossed", lambda one, other: iter(()))
    assert plan.predicted_latency_s < 0.995 * halo(network, some).predicted_latency_s


def test_an_exchange_stays_however_dear_it_is() -> None:
    network, some = real("digits"), cluster(*[20.0] * 4, link=Link(1e8, 0.02))
    plan = halo(network, some)
    check_plan(plan, network, some)
    assert plan.traffic.halo > 0


def test_neighbours_that_are_not_divided_may_become_one_block() -> None:
    alone, rows = SlotForm(()), SlotForm((0, 1), "rows")
    slots = (Slot(0, 1, alone, peers=True), Slot(1, 3, alone, peers=True), Slot(3, 4, rows))
    assert [*peer_moves.united(slots, 0)] == [(Slot(0, 3, alone, peers=True), slots[2])]
    assert not [*peer_moves.united(slots, 1)]


def test_neighbouring_connected_layers_are_divided_before_they_become_one_block() -> None:
    plan = halo(real("vgg16"), cluster_of(load_kind("pi4-gbe"), 8))
    tiles = {block.start: len(block.tiles) for block in plan.blocks}
    assert (tiles[13] > 1, tiles[14] > 1) == (True, True), "411 and 67 MB of weights"


def test_a_longer_block_leaves_the_rows_of_a_connected_layer_in_place() -> None:
    slow = load_kind("pi5-wifi").model_copy(
        update={"gflops": 40.0, "map_byte_ns": 0.0, "mbps": 120.0, "latency_ms": 1.5}
    )
    network, some = real("alexnet"), cluster_of(slow, 3)
    plan = halo(network, some)
    check_plan(plan, network, some)
    layer = next(each for each in plan.blocks if network.units[each.start].name == "fc6")
    before = plan.blocks[plan.blocks.index(layer) - 1]
    assert layer.exchange == "peer", "through the host it takes 6 % longer"
    assert layer.devices == before.devices
    assert len(before.devices) > 1


def test_plan_on_one_device_has_no_halo() -> None:
    network = real("digits")
    plan = halo(network, pis(1))
    assert plan.traffic.halo == 0
    assert len(plan.blocks) == 1
    assert plan.strategy == "halo"


@pytest.mark.parametrize("name", ["digits", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_split_equals_whole(name: str) -> None:
    proto = load(name).proto
    network = divide(load_graph(proto, name))
    plan = halo(network, pis(3))
    feeds = random_inputs(network.graph)
    whole = WholeModel(proto, 1).run(feeds)
    assert compare(run_plan(plan, network, feeds), whole).max_rel_error <= 1e-5


@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_halo_divides_everything_where_computing_is_dear(count: int) -> None:
    """Rows that don't come out even, edges, and fully connected layers; the answer is the same."""
    network, slow = small(), cluster(*[0.002] * count, link=MEMORY)
    plan = halo(network, slow)
    check_plan(plan, network, slow)
    connected = [b for b in plan.blocks if network.units[b.start].name in ("fc1", "fc2")]
    assert len(connected) == 2
    assert all(len(block.devices) > 1 for block in connected)
    feeds = random_inputs(network.graph)
    whole = WholeModel(small_model(), 1).run(feeds)
    assert compare(run_plan(plan, network, feeds), whole).max_rel_error <= 1e-5


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize(("edge_rows", "tiles"), [(0, 3), (2, 7), (6, 3)])
def test_strips_cover_the_map_whoever_has_the_longer_ones(
    turn: int, edge_rows: int, tiles: int
) -> None:
    network, some = small(), cluster(1.0, 1.0, 1.0)
    forms = Forms(Stages(network, some, tables_of(network, some)))
    form = SlotForm((0, 1, 2), "rows", edge_rows=edge_rows, turn=turn)
    stage = forms.stage(Slot(0, 1, form))  # 16 rows over three devices
    assert stage is not None
    shares = stage.shares
    assert len(shares) == tiles
    rows = [(tile.rows, device) for device, tile in shares if isinstance(tile, MapTile)]
    lengths = [sum(len(span) for span, device in rows if device == d) for d in range(3)]
    assert lengths == [6 if d == turn else 5 for d in range(3)]
    assert sorted(row for span, _ in rows for row in range(span.start, span.stop)) == [*range(16)]


def heavy_model() -> ModelProto:
    """A map of four rows with many weights after one of many rows."""
    net = Builder("heavy", seed=5)
    x = net.input("image", (1, 8, 32, 32))
    x = x.conv("wide", 32, square(3)).relu().max_pool("pool", square(8, 8))
    x = x.conv("heavy1", 256, square(3)).relu()
    skip = x.conv("heavy2", 256, square(3)).relu()
    return net.model(skip.conv("heavy3", 256, square(3)).add("add", skip).relu())


def reading(weight_ns: float) -> Cluster:
    """Four devices that spend this much on each weight, whatever the size of a tile."""
    costs = RateCosts(4.0, weight_ns=weight_ns)
    return Cluster(tuple(device(f"d{i}", 4.0, MEMORY, costs=costs) for i in range(4)))


def sliced(plan: Plan, network: Network) -> list[str]:
    """The units that are divided over their channels."""
    cut = (b for b in plan.blocks if len({each for t in b.tiles for each in _channels(t)}) > 1)
    return [network.units[block.start].name for block in cut]


def _channels(tile: Tile) -> set[Span]:
    return {box[CHANNELS] for box in tile.boxes.values()}


def test_layers_of_many_weights_are_divided_over_their_channels() -> None:
    """Each device reads its share of the weights, and the answer stays the same."""
    model = heavy_model()
    network, some = divide(load_graph(model, "heavy")), reading(20.0)
    plan = halo(network, some)
    check_plan(plan, network, some)
    assert sliced(plan, network) == ["heavy2", "heavy3"]
    assert all(block.exchange == "peer" for block in plan.blocks[-2:])
    assert difference(model, plan, network).max_rel_error <= 1e-5


def test_maps_keep_all_channels_where_weights_cost_nothing() -> None:
    network = divide(load_graph(heavy_model(), "heavy"))
    assert not sliced(halo(network, reading(0.0)), network)


def test_pairs_that_cannot_reach_each_other_get_slices_through_the_host() -> None:
    network, some = divide(load_graph(heavy_model(), "heavy")), reading(20.0)
    first, second, *_ = (each.id for each in some.devices)
    plan = halo(network, replace(some, apart=frozenset({frozenset({first, second})})))
    check_plan(plan, network, some)
    assert difference(heavy_model(), plan, network).max_rel_error <= 1e-5


def test_values_of_deformable_attention_are_computed_in_one_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the tokens, of which every device needs all, travel once: from the start."""
    monkeypatch.setattr(halo_search, "EFFORT", 0)
    model = deformable(32, layers=5)
    network, some = divide(load_graph(model)), cluster(*[0.02] * 4)
    plan = halo(network, some)
    check_plan(plan, network, some)
    assert len([block for block in plan.blocks if _values(network, block)]) == 1
    assert any(len(block.devices) == 4 for block in plan.blocks)
    assert difference(model, plan, network).max_rel_error < 1e-5


def _values(network: Network, block: Block) -> list[str]:
    graph = network.graph
    return [
        node.name
        for node in network.nodes(block.start, block.stop)
        if node.op == "MatMul" and graph.axis(node.outputs[0], ROWS) == 2
    ]
