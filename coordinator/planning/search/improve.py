"""Local search over drafts: keeps every change that the simulator's rules predict to be better.

Planners compose moves; each move proposes drafts that differ from a given one in one place. Memory
comes first: as long as a draft overfills a device, a move is better if it overfills less, so that a
small device ends with fewer blocks rather than with none.
"""

from collections.abc import Callable, Iterable, Iterator

from coordinator.planning.search.block_costs import PlanDraft, Stage
from coordinator.planning.search.block_tiles import Forms
from coordinator.planning.search.slots import Slots

Cost = tuple[float, float]
# Proposes drafts that differ from the slots at an index.
Moves = Callable[[Slots, int], Iterator[Slots]]


class Search:
    """Improves slots within a budget of simulated tasks. A draft is better if its time is less by a
    share `by`. `allows(slots, trial)`: whether one draft may replace another.
    """

    def __init__(
        self,
        forms: Forms,
        effort: int,
        by: float = 1e-9,
        allows: Callable[[Slots, Slots], bool] = lambda slots, trial: True,
    ) -> None:
        self.forms, self.stages = forms, forms.stages
        self.left, self._by, self._allows = effort, by, allows

    def draft(self, slots: Slots) -> PlanDraft | None:
        """The stages of these slots; None if a form cannot be used for its block."""
        found: list[Stage] = []
        for slot in slots:
            stage = self.forms.stage(slot, found[-1] if found else None)
            if stage is None:
                return None
            found.append(stage)
        # If peers exchange boxes, all tasks are assigned at once, so no message waits for an
        # assignment.
        if any(stage.direct for stage in found) and any(stage.barrier for stage in found):
            return None
        return tuple(found)

    def cost(self, draft: PlanDraft) -> Cost:
        """Bytes that exceed memory, then seconds; smaller is better."""
        before = self.stages.simulated
        seconds = self.stages.latency_s(draft)
        self.left -= self.stages.simulated - before
        return self.stages.overflow_bytes(draft), seconds

    def cost_of(self, slots: Slots) -> Cost:
        """The cost of slots whose forms are known to be possible."""
        draft = self.draft(slots)
        assert draft is not None, "these forms are possible for their blocks"
        return self.cost(draft)

    def take(
        self, slots: Slots, best: Cost, trials: Iterable[Slots], by: float = 0.0
    ) -> tuple[Slots, Cost]:
        """Takes each trial that is better than the last one taken, at least by a share `by`."""
        for trial in trials:
            slots, best, _ = self._taken(slots, best, trial, by)
        return slots, best

    def sweep(self, slots: Slots, best: Cost, moves: Moves) -> tuple[Slots, Cost]:
        """Walks over the blocks once, and takes every move that helps."""
        for index in range(len(slots)):
            if self.left > 0:
                slots, best = self.take(slots, best, moves(slots, index))
        return slots, best

    def climb(self, slots: Slots, best: Cost, moves: Moves) -> tuple[Slots, Cost]:
        """Walks over the blocks, and at each takes moves as long as they help."""
        index = 0
        while index < len(slots) and self.left > 0:
            for candidate in moves(slots, index):
                slots, best, taken = self._taken(slots, best, candidate)
                if taken or self.left <= 0:
                    break
            else:
                index += 1
        return slots, best

    def _taken(
        self, slots: Slots, best: Cost, trial: Slots, by: float = 0.0
    ) -> tuple[Slots, Cost, bool]:
        draft = self.draft(trial) if self._allows(slots, trial) else None
        if draft is None:
            return slots, best, False
        cost = self.cost(draft)
        taken = is_better(cost, best, max(self._by, by))
        return (trial, cost, True) if taken else (slots, best, False)


def is_better(one: Cost, other: Cost, by: float) -> bool:
    """Whether it overflows less, or as little with less time by a share `by`."""
    if one[0] != other[0]:
        return one[0] < other[0]
    return one[1] < other[1] * (1 - by)
