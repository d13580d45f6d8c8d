"""Walks over the blocks of a draft."""

from collections.abc import Iterator

from coordinator.planning.search.block_costs import Stages
from coordinator.planning.search.block_tiles import Forms
from coordinator.planning.search.improve import Search
from coordinator.planning.search.peer_moves import united
from coordinator.planning.search.slots import Slot, SlotForm, Slots
from coordinator.planning.search.tables import tables_of
from tests.planning.support import cluster, small


def test_a_climb_stays_at_a_block_while_that_helps() -> None:
    network, some = small(), cluster(1.0, 1.0)
    stages = Stages(network, some, tables_of(network, some))
    search = Search(Forms(stages), 10_000)
    slots = tuple(Slot(k, k + 1, SlotForm(())) for k in range(stages.tables.last))
    walked: list[int] = []

    def watched(slots: Slots, index: int) -> Iterator[Slots]:
        walked.append(index)
        return united(slots, index)

    best, cost = search.climb(slots, search.cost_of(slots), watched)
    assert cost == search.cost_of(best) < search.cost_of(slots)
    assert walked == sorted(walked)
    assert walked.count(0) > 1


def test_only_what_is_simulated_uses_up_the_effort() -> None:
    network, some = small(), cluster(1.0, 1.0)
    search = Search(Forms(Stages(network, some, tables_of(network, some))), 100)
    slots = (Slot(0, search.stages.tables.last, SlotForm((0,))),)
    known = [search.cost_of(slots) for _ in range(3)]
    assert known == known[:1] * 3
    assert search.left == 99
