"""Alternatives to a plan, and their predicted latencies: simulated, not executed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from coordinator.costs.cluster import Cluster, Link, Planner, fastest
from coordinator.planning.planners.propose import propose
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.planning.simulate.simulator import simulate
from coordinator.tasks.plan import Plan
from imbrex import terminal
from models.cut.units import Network
from models.tensors.precision import Wire
from protos.errors import ImbrexError

# The smallest difference worth a sentence, about the error of predictions.
NOTABLE = 0.01
FASTER_LINK = 10

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Alternative:
    """An alternative and its predicted latency; `reason` if it is impossible."""

    what: str
    latency_s: float = 0.0
    reason: str = ""

    def would(self, now_s: float) -> str:
        """A part of a sentence."""
        if self.reason:
            return f"{self.what} cannot: {self.reason}"
        change = self.latency_s / now_s - 1
        told = "the same" if abs(change) < NOTABLE / 2 else f"{change:+.0%}"
        return f"{self.what} {terminal.duration(self.latency_s)} ({told})"


@dataclass(frozen=True, slots=True)
class Situation:
    """A plan, the cluster that it is for, and the planner that made it. `scale`: what the plan was
    told to take, over what it takes in a simulation of `cluster`, which does not know all that a
    coordinator has learnt; alternatives are told in the plan's seconds.
    """

    network: Network
    cluster: Cluster
    plan: Plan
    planner: Planner
    scale: float = 1.0

    @property
    def now_s(self) -> float:
        """The plan's predicted latency."""
        return self.scale * self.plan.predicted_latency_s

    def planned(
        self, what: str, cluster: Cluster, planner: Planner | None = None, wire: Wire | None = None
    ) -> Alternative:
        """The result with another cluster, planner or wire."""
        try:
            allowed = wire or self.plan.wire
            plan = propose(planner or self.planner, self.network, cluster, allowed)
        except ImbrexError as error:
            return Alternative(what, reason=error.cause)
        return Alternative(what, self.scale * plan.predicted_latency_s)


def sentences(situation: Situation, step: Announce) -> Iterator[str]:
    """Sentences on the number of devices, other strategies, and options that would help."""
    now_s = situation.now_s
    numbers = [each.would(now_s) for each in _numbers(situation, step)]
    used = len(situation.plan.devices)
    if numbers:
        yield (
            f"Why {used} of {len(situation.cluster.devices)} devices: it takes "
            f"{terminal.duration(now_s)}; planned by the same strategy, {_listed(numbers)}."
        )
    others = list(_strategies(situation, step))
    yield f"Other strategies would take: {_listed([each.would(now_s) for each in others])}."
    yield from _faster(now_s, others)
    yield from _opt_in_sentences(now_s, list(_opt_ins(situation, step)))


def _numbers(situation: Situation, step: Announce) -> Iterator[Alternative]:
    cluster, used = situation.cluster, len(situation.plan.devices)
    there = len(cluster.devices)
    for count in sorted({1, used - 1, used + 1, there} - {used, 0}):
        if count <= there:
            step(f"{count} devices")
            devices = "1 device" if count == 1 else f"{count} devices"
            yield situation.planned(f"{devices} would take", fastest(cluster, count))
    taking = [cluster.device(each) for each in situation.plan.devices]
    slowest = min(taking, key=lambda each: each.speed)
    without = replace(cluster, devices=tuple(each for each in cluster.devices if each != slowest))
    if len(taking) > 1 and {each.speed for each in taking} != {slowest.speed}:
        step(f"without {slowest.name}")
        yield situation.planned(f"without {slowest.name}, the slowest, it would take", without)


def _strategies(situation: Situation, step: Announce) -> Iterator[Alternative]:
    for name, planner in STRATEGIES.items():
        if name not in (situation.plan.strategy, "auto"):
            step(name)
            yield situation.planned(name, situation.cluster, planner)


def _faster(now_s: float, others: Sequence[Alternative]) -> Iterator[str]:
    """The best strategy that beats the plan, which `auto` may have ruled out by an estimate."""
    faster = [each for each in others if not each.reason and each.latency_s < now_s * (1 - NOTABLE)]
    if faster:
        best = min(faster, key=lambda each: each.latency_s)
        yield f"{best.what} would be faster here: plan with --strategy {best.what}."


def _opt_ins(situation: Situation, step: Announce) -> Iterator[Alternative]:
    step("opt-ins")

    def times_as_wide(link: Link, factor: float) -> Link:
        return replace(link, bytes_per_s=link.bytes_per_s * factor)

    yield situation.planned(
        f"a network {FASTER_LINK} times as fast would make it",
        _with_links(situation.cluster, lambda link: times_as_wide(link, FASTER_LINK)),
    )
    if situation.plan.wire == "exact":
        yield situation.planned(
            "16-bit floats on the wire (--wire fp16: answers that differ a little) would make it",
            situation.cluster,
            wire="fp16",
        )
    if any(block.barrier for block in situation.plan.blocks[1:]):
        free = tuple(replace(block, barrier=False) for block in situation.plan.blocks)
        plan = replace(situation.plan, blocks=free)
        latency_s = simulate(plan, situation.network.wired(plan.wire), situation.cluster).latency_s
        yield Alternative("leaving out its barriers would make it", situation.scale * latency_s)


def _opt_in_sentences(now_s: float, found: Sequence[Alternative]) -> Iterator[str]:
    helping = [each for each in found if not each.reason and each.latency_s < now_s * (1 - NOTABLE)]
    for each in sorted(helping, key=lambda one: one.latency_s):
        sentence = each.would(now_s)
        yield sentence[0].upper() + sentence[1:] + "."
    if len(helping) < len(found):
        rest = [each.what.partition(" would")[0].partition(" (")[0] for each in found]
        rest = [what for what, each in zip(rest, found, strict=True) if each not in helping]
        yield f"Not worth it here: {_listed(rest)}."


def _with_links(cluster: Cluster, change: Callable[[Link], Link]) -> Cluster:
    """The cluster with another network; the host's own worker reads from memory as before."""
    devices = tuple(
        each if each.host else replace(each, link=change(each.link)) for each in cluster.devices
    )
    uplink = change(cluster.uplink) if cluster.uplink else None
    return replace(cluster, devices=devices, uplink=uplink)


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts) if parts else "none"
