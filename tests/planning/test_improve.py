"""Walks over the blocks of a draft."""

from collections.abc import Iterator

import pytest

from coordinator.planning.search.block_costs import Stages
from coordinator.planning.search.block_tiles import Forms
from coordinator.planning.search.improve import Search
from coordinator.planning.search.peer_moves import united
from coordinator.planning.search.slots import Slot, SlotForm, Slots
from coordinator.planning.search.tables import tables_of
from tests.planning.support import cluster, small


@pytest.mark.parametrize("from_end", [False, True])
def test_a_climb_begins_at_either_end(from_end: bool) -> None:
    network, some = small(), cluster(1.0, 1.0)
    stages = Stages(network, some, tables_of(network, some))
    search = Search(Forms(stages), 10_000)
    slots = tuple(Slot(k, k + 1, SlotForm(())) for k in range(stages.tables.last))
    walked: list[int] = []

    def watched(slots: Slots, index: int) -> Iterator[Slots]:
        walked.append(index)
        return united(slots, index)

    best, cost = search.climb(slots, search.cost_of(slots), watched, from_end=from_end)
    assert cost == search.cost_of(best) < search.cost_of(slots)
    assert walked == sorted(walked, reverse=from_end)
    assert walked[0] == (len(slots) - 1 if from_end else 0)
