"""Plans by hand, and short words for what happens to them."""

from dataclasses import replace
from itertools import count

from coordinator.answers import IN_FORCE, PlanChoice
from coordinator.planning.groups import Grouping, ServiceTimes
from coordinator.plans.book import PlanBook
from coordinator.plans.entries import SETTLE_S
from coordinator.plans.steps import Planned, Prepare, Prepared, Propose, Ticket
from coordinator.tasks.plan import Block, Plan, Tile
from coordinator.tasks.task_graph import TaskGraph
from models.cut.program import Program
from protos.wire.facts import DeviceId
from tests.requests import sketches

M = "a model"
LW = PlanChoice("lw")
ALL = frozenset(map(DeviceId, "abcd"))


def plan(devices: str, latency_s: float = 1.0) -> Plan:
    """One block, divided among these devices."""
    tiles = tuple(Tile(DeviceId(each), {}) for each in devices)
    return replace(sketches.plan(), blocks=(Block(0, 1, tiles),), predicted_latency_s=latency_s)


def graph(of: Plan | str) -> TaskGraph:
    """Prepared: one program for each device."""
    made = plan(of) if isinstance(of, str) else of
    programs = {f"program of {each}": Program(each.encode(), ()) for each in made.devices}
    return replace(sketches.chain([sketches.HALVES]), plan=made, programs=programs)


def grouping(*groups: str, latency_s: float, period_s: float | None = None) -> Grouping:
    service = ServiceTimes(latency_s, period_s or latency_s, 0.0)
    return Grouping(tuple(map(plan, groups)), (service,) * len(groups))


def plans() -> PlanBook:
    return PlanBook(count(1))


def in_force(machine: PlanBook, made: TaskGraph, choice: PlanChoice = IN_FORCE) -> float:
    """A model's first plan is this one; the time then."""
    machine.ask(Ticket(999), M, choice, 0.0)
    (proposed,) = machine.tick(SETTLE_S)
    assert isinstance(proposed, Propose)
    (prepare,) = machine.ended(Planned(proposed.work, made.plan), SETTLE_S)
    assert isinstance(prepare, Prepare)
    machine.ended(Prepared(prepare.work, (made,)), SETTLE_S)
    return SETTLE_S
