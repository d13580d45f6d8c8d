"""`auto`: the best of the strategies that can win.

All candidates are ranked by the event simulator's rules (`pipeline`), and the best ones by the
simulator itself. `single` is always among these, so that no plan is predicted slower than one
device; it is also chosen if another plan's gain is within the error of the devices' profiles.
`fused` starts from AOFL's blocks and improves them. `halo` is searched unless a plan is already
close to the ideal of all devices together. The best plans are also tried without barriers, with
branches on different devices, and over fewer devices where all of them leave much unused; for
networks larger than a device, in stages on groups of devices.
"""

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from coordinator.costs.cluster import Cluster, fastest
from coordinator.costs.corrections import block_error
from coordinator.planning.placing import within_memory
from coordinator.planning.plan_memory import larger_than_a_device
from coordinator.planning.planners.branches import by_branches
from coordinator.planning.planners.candidates import CANDIDATES, When
from coordinator.planning.planners.reasons import engine_notes
from coordinator.planning.search.block_costs import PlanDraft, Stages
from coordinator.planning.search.tables import tables_of
from coordinator.planning.simulate.simulator import simulate
from coordinator.planning.single_device import computing_s
from coordinator.planning.stage_groups import staged_in_groups
from coordinator.tasks.plan import Plan
from models.cut.units import Network
from protos.errors import Infeasible

# Plans that the simulator itself compares, and by how much they may be worse than the best.
_FINALISTS = 3
_CLOSE = 1.03
# Plans that are tried with branches on different devices.
_BRANCHED = 2
# A plan this close to the sum of all devices' rates leaves no noticeable gain.
_IDEAL = 1.03
# Fewer devices are tried if the plan takes this much longer than they would at best, without
# transfers. Assumed.
_WASTEFUL = 1.25
# How many strategies are tried over fewer devices, and by how much they may be worse than the best
# there: over 3 of 6 Pi 5s on Wi-Fi `halo` gains 5 % on VGG-16; over all of them it is 17 % behind.
_LEADING, _LEADING_CLOSE = 2, 1.2
# Strategies whose blocks are a layer or little more.
_LIGHT = ("halo", "lw")
# Numbers of devices that divide most maps evenly, and three; until so many in a row are clearly
# worse.
_FEWER = (48, 32, 24, 16, 12, 8, 4, 3, 2)
_HOPELESS = 2
# The share of a profile's error by which a plan has to be better than one device alone: errors of
# blocks partly cancel. Assumed.
_ERROR_SHARE = 0.5
# With more devices than this, a search takes most of the time that a plan may take.
_MANY = 16


def auto(network: Network, cluster: Cluster) -> Plan:
    """The plan with the least simulated latency; the first of the candidates among equals."""
    with _no_collection():
        candidates = _Candidates(network, cluster)
        candidates.add("always")
        if candidates.best_s > candidates.ideal_s * _IDEAL:
            candidates.add("below ideal")
        if larger_than_a_device(network, cluster):
            candidates.add_groups()
        if candidates.found:
            candidates.add_fewer()
            candidates.add_branches()
        return candidates.chosen()


@contextmanager
def _no_collection() -> Iterator[None]:
    """A search makes millions of objects and hardly a cycle: looking for these again and again took
    a third of the time for 64 devices.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A plan of a strategy, what was `changed` in it, and its latency by the simulator's rules."""

    strategy: str
    plan: Plan
    latency_s: float
    changed: str = ""

    @property
    def name(self) -> str:
        """What people read."""
        return self.strategy + self.changed


class _Candidates:
    """Plans by name of their strategy, ranked by the same rules."""

    def __init__(self, network: Network, cluster: Cluster) -> None:
        self.network, self.cluster = network, cluster
        self.tables = tables_of(network, cluster)
        self.stages = Stages(network, cluster, self.tables)
        self.computing_s = np.sort(computing_s(network, cluster.devices))
        self.found: list[_Candidate] = []
        self.tried: set[str] = set()
        self.refused: Infeasible | None = None

    def add(self, when: When) -> None:
        """Tries the planners of this class; of equal plans the latest comes first."""
        for name, candidate in [*CANDIDATES.items()][::-1]:
            if candidate.tried != when:
                continue
            self.tried.add(name)
            try:
                planner = within_memory(candidate.planner, in_groups=False)
                self._add(name, planner(self.network, self.cluster))
            except Infeasible as error:
                self.refused = self.refused or error

    def _add(self, strategy: str, plan: Plan, changed: str = "") -> float:
        """Adds the plan and, if it has barriers between its blocks, the same without them; returns
        the lesser latency.
        """
        draft = self.stages.of_plan(plan)
        latencies = [self.stages.latency_s(draft)]
        self.found.append(_Candidate(strategy, plan, latencies[0], changed))
        if any(block.barrier for block in plan.blocks[1:]):
            blocks = tuple(replace(block, barrier=False) for block in plan.blocks)
            latencies.append(self.stages.latency_s(self.stages.without_barriers(draft)))
            plan, changed = replace(plan, blocks=blocks), f"{changed} without barriers"
            self.found.append(_Candidate(strategy, plan, latencies[1], changed))
        return min(latencies)

    def add_fewer(self) -> None:
        """Tries the best strategies over fewer of the fastest devices, until that is clearly worse
        twice in a row or there is nothing to gain. Of very many devices, the best plan has chosen
        already. If the best plan leaves devices out, it tries one device less and one more, as long
        as that is better.
        """
        devices = len(self.cluster.devices)
        most = devices if devices <= _MANY else self._used
        tried, worse = {devices}, 0
        for count in (fewer for fewer in _FEWER if fewer < most):
            before_s = self.best_s
            seconds = self._add_on(count)
            tried.add(count)
            worse = worse + 1 if seconds > before_s * _CLOSE else 0
            if math.isinf(seconds) or worse == _HOPELESS:
                break
        for step in (-1, 1) if self._used < devices else ():
            while 1 < (count := self._used + step) < devices and count not in tried:
                tried.add(count)
                self._add_on(count, most=1)

    @property
    def _used(self) -> int:
        """The devices that the best plan uses."""
        return len(min(self.found, key=lambda proposal: proposal.latency_s).plan.devices)

    def _add_on(self, count: int, most: int = _LEADING) -> float:
        """Tries at `most` so many of the best strategies over so many devices, and returns the
        least latency; infinite if there is nothing to gain, or their memory is too small.
        """
        if self.best_s <= self._ideal_s(count) * _WASTEFUL:
            return math.inf
        fewer = fastest(self.cluster, count)
        try:
            plans = [
                (name, CANDIDATES[name].planner(self.network, fewer))
                for name in self._leading()[:most]
            ]
        except Infeasible:
            return math.inf
        return min(self._add(strategy, plan, f" on {count}") for strategy, plan in plans)

    def add_groups(self) -> None:
        """Tries the best strategies, and those with light blocks, in stages on groups of
        devices.
        """
        for strategy in dict.fromkeys((*self._leading(), *_LIGHT)):
            planner = CANDIDATES[strategy].planner
            for plan in staged_in_groups(planner, self.network, self.cluster):
                self._add(strategy, plan, " in groups")

    def _leading(self) -> list[str]:
        """The best strategy, and another one that is close."""
        ranked = sorted(self.found, key=lambda proposal: proposal.latency_s)
        most_s = self.best_s * _LEADING_CLOSE
        close = (proposal.strategy for proposal in ranked if proposal.latency_s <= most_s)
        return [*dict.fromkeys(close)][:_LEADING]

    def add_branches(self) -> None:
        """Tries the best plans with branches on different devices, and adds those that are
        faster.
        """
        # Without any that differs from a better one only in its barriers.
        apart: dict[PlanDraft, _Candidate] = {}
        for proposal in sorted(self.found, key=lambda proposal: proposal.latency_s):
            draft = self.stages.without_barriers(self.stages.of_plan(proposal.plan))
            apart.setdefault(draft, proposal)
        for proposal in [*apart.values()][:_BRANCHED]:
            plan = by_branches(proposal.plan, self.network, self.cluster, self.stages)
            if plan is not None:
                changed = f"{proposal.changed} with branches"
                self.found.append(
                    _Candidate(proposal.strategy, plan, plan.predicted_latency_s, changed)
                )

    @property
    def best_s(self) -> float:
        """The least latency so far."""
        return min((proposal.latency_s for proposal in self.found), default=float("inf"))

    @property
    def ideal_s(self) -> float:
        """The time that all devices would take together without transfers and redundant
        computation.
        """
        return self._ideal_s(len(self.cluster.devices))

    def _ideal_s(self, count: int) -> float:
        """The same of the `count` fastest."""
        return float(1.0 / (1.0 / self.computing_s[:count]).sum())

    def chosen(self) -> Plan:
        """The best plan, with a note on the others' latencies.

        Raises:
            Infeasible: there is no plan.
        """
        if not self.found:
            assert self.refused is not None
            raise self.refused
        finalists = list(self._finalists())
        best = min(finalists, key=lambda proposal: proposal.plan.predicted_latency_s)
        alone = next((finalist for finalist in finalists if finalist.strategy == "single"), best)
        used = (device for device in self.cluster.devices if device.id in best.plan.devices)
        error = max(block_error(device.costs) for device in used)
        least_s = (1.0 - _ERROR_SHARE * error) * alone.plan.predicted_latency_s
        if best.plan.predicted_latency_s > least_s:
            best = alone
        compared = ", ".join(
            f"{proposal.name} {proposal.latency_s / best.latency_s - 1:+.0%}"
            for proposal in self.found
            if proposal.name != best.name
        )
        note = f"Chosen: {best.name}. Compared with its time: {compared}."
        left = [
            name
            for name, candidate in CANDIDATES.items()
            if candidate.tried != "never" and name not in self.tried
        ]
        skipped = f"Not searched, as an estimate rules them out: {', '.join(left)}."
        notes = (note, skipped) if left else (note,)
        notes = (*notes, *best.plan.notes, *engine_notes(best.plan, self.network, self.cluster))
        return replace(best.plan, strategy="auto", notes=notes)

    def _finalists(self) -> Iterator[_Candidate]:
        """The best few, and one device alone, with the simulator's own predictions."""
        ranked = sorted(self.found, key=lambda proposal: proposal.latency_s)
        close = [proposal for proposal in ranked if proposal.latency_s <= self.best_s * _CLOSE][
            :_FINALISTS
        ]
        alone = [
            proposal
            for proposal in self.found
            if proposal.strategy == "single" and proposal not in close
        ]
        for proposal in (*close, *alone):
            seconds = simulate(proposal.plan, self.network, self.cluster).latency_s
            yield replace(proposal, plan=replace(proposal.plan, predicted_latency_s=seconds))
