"""One plan, in force or chosen, and how it is replaced: pure state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from coordinator.answers import IN_FORCE, PlanChoice
from coordinator.plans.steps import PlanStep, Refuse, Start, Stop, Ticket, Work
from coordinator.tasks.plan import MadeFor, Plan
from coordinator.tasks.task_graph import TaskGraph
from protos.errors import ImbrexError
from protos.wire.facts import DeviceId

# Events that come together (four workers starting) lead to one plan.
SETTLE_S = 0.2
# Each is a hash of a hundred bytes; devices themselves drop programs that were not run for long.
MOST_LEFT = 1024

# Causes of planning again that leave the old plan usable: time has passed, or the speeds of
# devices and links have changed.
PERIOD = "period"
DRIFT = "drift"
CONSIDERED = (PERIOD, DRIFT)


@dataclass(slots=True)
class Making:
    """A plan that is being made, and the devices that it must avoid."""

    work: Work
    causes: tuple[str, ...]
    without: dict[DeviceId, ImbrexError] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class ModelPlan:
    """A plan in force or chosen, and the work on its successor."""

    model: str
    choice: PlanChoice
    graph: TaskGraph | None = None
    error: ImbrexError | None = None
    # Causes of the next plan, whose making begins at `begins_s`.
    causes: dict[str, None] = field(default_factory=dict)
    begins_s: float = inf
    making: Making | None = None
    held: bool = False
    stale: bool = False
    # When each waiting ticket times out, in order of arrival.
    waiting: dict[Ticket, float] = field(default_factory=dict)
    # Programs of earlier plans, which may still be on the devices.
    left: dict[str, None] = field(default_factory=dict)
    # The devices that the plan was made for, or that it was last found good enough for.
    made_for: tuple[MadeFor, ...] = ()
    # Whether the plan was made, and without leaving out devices that could not be prepared.
    is_settled: bool = False

    @property
    def busy(self) -> bool:
        """Whether a successor is being made, or is about to be."""
        return self.making is not None or bool(self.causes)

    @property
    def due_s(self) -> float:
        """When the next plan begins or a wait times out."""
        return min(self.begins_s, next(iter(self.waiting.values()), inf))

    def want(self, cause: str, now: float) -> None:
        """Another plan is wanted. While one is being made for the same cause, this adds nothing."""
        if self.held or (self.making and cause in CONSIDERED and cause in self.making.causes):
            return
        self.causes.setdefault(cause)
        if self.making is None:
            self.begins_s = min(self.begins_s, now + SETTLE_S)

    def change(self, cause: str, now: float) -> None:
        """Devices or their speeds have changed. A chosen plan becomes stale only if devices or
        measurements did, and is made again when it is next asked for.
        """
        if self.choice == IN_FORCE:
            self.want(cause, now)
        elif cause not in CONSIDERED and not self.choice.plan:
            self.stale = True

    def ended(self, now: float) -> Iterator[PlanStep]:
        """Planning succeeded or failed: answers the waiting tickets."""
        self.making = None
        if self.causes:
            self.begins_s = now + SETTLE_S
        for ticket in list(self.waiting):
            if self.graph is not None:
                yield Start(ticket, self.graph)
            elif self.error is not None and not self.causes:
                yield Refuse(ticket, self.error)
            else:
                continue
            del self.waiting[ticket]

    def put(self, graph: TaskGraph | None, error: ImbrexError | None = None) -> None:
        """Stores the outcome of planning."""
        if self.graph is not None and graph is not self.graph:
            self.left.update(dict.fromkeys(self.graph.programs))
            for oldest in list(self.left)[: max(0, len(self.left) - MOST_LEFT)]:
                del self.left[oldest]
        if graph is not None and graph is not self.graph:
            self.made_for = graph.plan.made_for
        self.graph, self.error = graph, error
        self.is_settled = graph is not None and error is None

    def stopped(self) -> Iterator[PlanStep]:
        """Cancels the plan that is being made, and the wish for another."""
        self.causes.clear()
        self.begins_s = inf
        if self.making is not None:
            yield Stop(self.making.work)


def are_alike(one: Plan, other: Plan) -> bool:
    """Whether two plans execute the same way; their predictions may differ."""
    return (one.blocks, one.wire) == (other.blocks, other.wire)
