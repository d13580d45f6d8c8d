"""Planted illegal plans are rejected, and the error names what is wrong."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.costs.cluster import Cluster
from coordinator.planning.legal import IllegalPlan, check_plan
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.named import strategy
from coordinator.tasks.plan import Block, Plan, Tile
from models.cut.units import divide
from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.importer import load_graph
from models.tensors.boxes import Box, Span
from protos.errors import Infeasible
from protos.wire.facts import DeviceId
from tests.planning.support import CLUSTERS, small

SOME = CLUSTERS["no host"]


def legal() -> Plan:
    """The layer-wise plan: every block splits what it can."""
    return strategy("lw")(small(), SOME)


def with_block(plan: Plan, index: int, block: Block) -> Plan:
    blocks = list(plan.blocks)
    blocks[index] = block
    return replace(plan, blocks=tuple(blocks))


def with_tile(plan: Plan, index: int, number: int, tile: Tile) -> Plan:
    tiles = list(plan.blocks[index].tiles)
    tiles[number] = tile
    return with_block(plan, index, replace(plan.blocks[index], tiles=tuple(tiles)))


def with_rows(plan: Plan, number: int, change: Callable[[Span], Span]) -> Plan:
    """Another row range for one tile of the first block."""
    tile = plan.blocks[0].tiles[number]
    ((name, box),) = tile.boxes.items()
    return with_tile(plan, 0, number, replace(tile, boxes={name: box.replace(2, change(box[2]))}))


def rejected(plan: Plan, match: str, some: Cluster = SOME) -> IllegalPlan:
    with pytest.raises(IllegalPlan, match=match) as caught:
        check_plan(plan, small(), some)
    assert isinstance(caught.value, Infeasible)
    assert caught.value.cure
    return caught.value


def test_planners_plan_is_legal() -> None:
    check_plan(legal(), small(), SOME)


def test_missing_and_overlapping_rows() -> None:
    plan = legal()
    error = rejected(with_rows(plan, 0, lambda s: Span(s.start, s.stop - 1)), "exactly once")
    assert (error.block, error.tile) == (0, None)
    rejected(with_rows(plan, 0, lambda s: Span(s.start, s.stop + 1)), "exactly once")


def test_a_tile_outside_its_map() -> None:
    error = rejected(with_rows(legal(), 3, lambda s: Span(s.start, s.stop + 99)), "whose shape is")
    assert (error.block, error.tile) == (0, 3)


def test_empty_tiles_are_left_out_not_listed() -> None:
    rejected(with_rows(legal(), 1, lambda s: Span(s.start, s.start)), "is empty")
    plan = legal()
    rejected(with_block(plan, 1, replace(plan.blocks[1], tiles=())), "no tile")


def test_plan_for_an_unknown_device_is_illegal() -> None:
    plan = legal()
    stranger = replace(plan.blocks[0].tiles[1], device=DeviceId("stranger"))
    assert rejected(with_tile(plan, 0, 1, stranger), "'stranger'").tile == 1


@pytest.mark.parametrize("index", [0, 2, -1])
def test_a_block_is_missing(index: int) -> None:
    plan = legal()
    blocks = list(plan.blocks)
    del blocks[index]
    rejected(replace(plan, blocks=tuple(blocks)), r"is next|ends at unit")


def test_blocks_out_of_order() -> None:
    plan = legal()
    rejected(replace(plan, blocks=plan.blocks[::-1]), "is next")


def test_a_tensor_that_the_block_does_not_yield() -> None:
    plan = legal()
    index = len(plan.blocks) - 2
    (tile,) = plan.blocks[index].tiles
    strange = replace(tile, boxes={"conv1": Box.of((0, 1), (0, 8), (0, 32), (0, 32))})
    error = rejected(with_tile(plan, index, 0, strange), "does not yield")
    assert (error.block, error.tile) == (index, 0)


def test_wasteful_plan_is_legal() -> None:
    """Each device computes the whole map, and its half of the classes."""
    plan = legal()
    first = len(plan.blocks) - 3
    start, stop = plan.blocks[first].start, plan.blocks[-1].stop
    name = small().outputs(start, stop)[-1]
    halves = tuple(
        Tile(device, {name: Box.of((0, 1), channels)})
        for device, channels in zip(plan.devices, ((0, 5), (5, 10)), strict=False)
    )
    blocks = (*plan.blocks[:first], Block(start, stop, halves))
    check_plan(replace(plan, blocks=blocks), small(), SOME)


def test_rows_of_an_unsplittable_unit() -> None:
    net = NetworkBuilder("mixed", seed=1)
    x = net.input("image", (1, 3, 8, 8)).conv("conv", 3, square(3))
    x = net.node("Softmax", "mixed", [x.name], (1, 3, 8, 8), axis=2)
    network = divide(load_graph(net.model(x), "mixed"))
    plan = strategy("single")(network, SOME)
    check_plan(plan, network, SOME)
    halves = tuple(
        Tile(device.id, {"mixed": Box.of((0, 1), (0, 3), rows, (0, 8))})
        for device, rows in zip(SOME.devices, ((0, 4), (4, 8)), strict=False)
    )
    split = with_block(plan, 0, replace(plan.blocks[0], tiles=halves))
    with pytest.raises(IllegalPlan, match="can't be split") as caught:
        check_plan(split, network, SOME)
    assert (caught.value.block, caught.value.tile) == (0, 0)


def test_partial_sums_are_legal_for_connected_layers_only() -> None:
    plan = strategy("lw")(small(), SOME)
    last = len(plan.blocks) - 1
    block = plan.blocks[last]
    (whole,) = block.tiles
    parts = tuple(
        replace(whole, device=device.id, part=Box.of((0, 1), part))
        for device, part in zip(SOME.devices, ((0, 10), (10, 32)), strict=False)
    )
    summed = with_block(plan, last, replace(block, tiles=parts))
    check_plan(summed, small(), SOME)
    short = replace(parts[1], part=Box.of((0, 1), (10, 31)))
    rejected(with_tile(summed, last, 1, short), "parts of block")
    rejected(with_tile(summed, last, 1, replace(parts[1], part=None)), "partial sum")
    rejected(
        with_tile(plan, 0, 0, replace(plan.blocks[0].tiles[0], part=Box.of((0, 1), (0, 3)))),
        "not a fully connected",
    )


def test_memory_over_the_cap_names_the_block() -> None:
    tight = replace(
        SOME, devices=tuple(replace(device, memory_bytes=10**6) for device in SOME.devices)
    )
    error = rejected(legal(), "MB", tight)
    assert error.block is not None
    check_plan(legal(), small(), tight, memory=False)


def test_a_plan_for_another_network() -> None:
    rejected(replace(legal(), model="other"), "'other'")


def exchanged(plan: Plan, index: int, exchange: str) -> Plan:
    """The plan with another exchange for one block, and without barriers."""
    blocks = [replace(block, barrier=False) for block in plan.blocks]
    blocks[index] = replace(blocks[index], exchange=exchange)  # type: ignore[arg-type]
    return replace(plan, blocks=tuple(blocks))


def test_block_that_exchanges_nothing_has_all_its_inputs() -> None:
    plan = strategy("single")(small(), SOME)
    (whole,) = plan.blocks
    (tile,) = whole.tiles

    def alone(start: int, stop: int, device: DeviceId, exchange: str) -> Block:
        names = small().outputs(start, stop)
        boxes = {name: Box.whole(small().graph.shape(name)) for name in names}
        return Block(start, stop, (Tile(device, boxes),), False, exchange)  # type: ignore[arg-type]

    cut = small().marks[1]
    first = alone(0, cut, tile.device, "host")
    stays = replace(plan, blocks=(first, alone(cut, whole.stop, tile.device, "none")))
    check_plan(stays, small(), SOME)
    other = next(each.id for each in SOME.devices if each.id != tile.device)
    moved = replace(plan, blocks=(first, alone(cut, whole.stop, other, "none")))
    assert rejected(moved, "exchanges nothing").block == 1
    rejected(exchanged(plan, 0, "none"), "exchanges nothing")


def test_split_blocks_with_halos_exchange_something() -> None:
    plan = legal()
    split = next(index for index, block in enumerate(plan.blocks) if index and len(block.tiles) > 1)
    assert rejected(exchanged(plan, split, "none"), "exchanges nothing").block == split
    check_plan(exchanged(plan, split, "peer"), small(), SOME)


def test_peers_have_something_to_pass_on() -> None:
    assert rejected(exchanged(legal(), 0, "peer"), "from peers").block == 0


def test_peers_do_not_wait_at_barriers() -> None:
    plan = exchanged(legal(), 1, "peer")
    error = rejected(with_block(plan, 1, replace(plan.blocks[1], barrier=True)), "barrier")
    assert error.block == 1
    # What comes through the host can wait for all that the peers do, and then begins.
    later = with_block(plan, 2, replace(plan.blocks[2], barrier=True))
    check_plan(later, small(), SOME)
    assert simulate(later, small(), SOME).latency_s > 0


def test_partial_sums_are_added_up_by_the_host() -> None:
    plan = strategy("single")(small(), SOME)
    (whole,) = plan.blocks
    last = len(small().units) - 1
    names = [device.id for device in SOME.devices[:2]]
    shape = {"fc1": Box.whole(small().graph.shape("fc1"))}
    (reads,) = small().units[last - 1].extent(shape).inputs.items()
    parts = [
        Tile(name, shape, part=reads[1].replace(2, Span(*rows)))
        for name, rows in zip(names, ((0, 4), (4, len(reads[1][2]))), strict=True)
    ]
    early = small().outputs(0, last - 1)
    front = Tile(names[0], {name: Box.whole(small().graph.shape(name)) for name in early})
    blocks = (
        Block(0, last - 1, (front,), False),
        Block(last - 1, last, tuple(parts), False),
        replace(whole, start=last, exchange="host", barrier=False),
    )
    summed = replace(plan, blocks=blocks)
    check_plan(summed, small(), SOME)
    assert rejected(exchanged(summed, 2, "peer"), "partial sums").block == 2
