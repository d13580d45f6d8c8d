"""Plans follow what devices can do now, and not every ripple of it: under a virtual clock."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from coordinator.costs.cluster import Cluster
from coordinator.costs.corrections import DRIFT, CorrectedCosts, Corrections, Observed
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.named import strategy
from coordinator.plans.switching import HEARD_S, LOOKS_IN_PERIOD, PERIOD_S, SETTLE_S, Switching
from coordinator.tasks.plan import Plan
from tests.planning.support import CLUSTERS, small

# So slow that dividing the small network pays, and that its cuts follow the devices' speeds.
DEVICES = replace(
    CLUSTERS["no host"],
    devices=tuple(
        replace(each, costs=CorrectedCosts(each.costs, 20.0))
        for each in CLUSTERS["no host"].devices
    ),
)
SLOW = DEVICES.devices[0].id


class Home:
    """A model that is asked every `every_s` seconds, on devices one of which changes its speed."""

    def __init__(self, every_s: float = 0.25, noise: float = 0.05) -> None:
        self.every_s = every_s
        self.noise = noise
        self.random = random.Random(1)
        self.now = 0.0
        self.slowness = 1.0
        self.corrections = Corrections.none()
        self.switching = Switching()
        self.plan = self._planned()
        self.switches: list[float] = []
        self.requests = 0

    def cluster(self, factors: dict[str, float]) -> Cluster:
        return replace(
            DEVICES,
            devices=tuple(
                replace(each, costs=CorrectedCosts(each.costs, factors.get(each.id, 1.0)))
                for each in DEVICES.devices
            ),
        )

    def believed(self) -> Cluster:
        return self.cluster({each.id: self.corrections.factor(each.id) for each in DEVICES.devices})

    def true_latency_s(self, plan: Plan) -> float:
        return simulate(plan, small(), self.cluster({SLOW: self.slowness})).latency_s

    def best_latency_s(self) -> float:
        now = self.cluster({SLOW: self.slowness})
        return simulate(strategy("ofl")(small(), now), small(), now).latency_s

    def _planned(self) -> Plan:
        return strategy("ofl")(small(), self.believed())

    def request(self) -> None:
        self.now += self.every_s
        self.requests += 1
        for each in DEVICES.devices:
            truth = self.slowness if each.id == SLOW else 1.0
            seconds = 0.1 * truth * self.random.uniform(1 - self.noise, 1 + self.noise)
            self.corrections = self.corrections.observed(each.id, 0.1, seconds, self.now)
        seen = {
            each.id: Observed(
                self.corrections.of(each.id).log_factor, self.corrections.of(each.id).surprise
            )
            for each in DEVICES.devices
        }
        if self.switching.is_due("small", seen, self.now):
            self._look()

    def _look(self) -> None:
        new, cluster = self._planned(), self.believed()
        old_s, new_s = (simulate(p, small(), cluster).latency_s for p in (self.plan, new))
        if new.blocks != self.plan.blocks and self.switching.accepts("small", old_s, new_s):
            self.switching.prepared(0.3)
            self.plan = new
            self.switches.append(self.now)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.request()


def gaps(home: Home) -> list[float]:
    """Seconds from each change to the next."""
    return [b - a for a, b in pairwise(home.switches)]


def test_a_steady_home_keeps_its_plan() -> None:
    home = Home(noise=0.15)
    home.run(300.0)
    assert home.switches == []


@pytest.mark.parametrize("every_s", [0.25, 1.0])
def test_a_lasting_change_is_followed_within_five_requests_or_five_seconds(every_s: float) -> None:
    home = Home(every_s)
    home.run(30.0)
    home.slowness = 3.0
    home.run(max(5.0, 5 * every_s))
    assert len(home.switches) == 1
    assert home.true_latency_s(home.plan) <= 1.15 * home.best_latency_s()
    home.slowness = 1.0  # and back
    home.run(PERIOD_S + 5.0)
    assert home.true_latency_s(home.plan) <= 1.15 * home.best_latency_s()


@pytest.mark.parametrize("half_period_s", [0.5, 2.0, 4.0, 8.0])
def test_an_oscillating_load_switches_once_per_period_at_most(half_period_s: float) -> None:
    home = Home()
    for swing in range(int(200 / half_period_s)):
        home.slowness = 3.0 if swing % 2 else 1.0
        home.run(half_period_s)
    assert all(gap >= PERIOD_S for gap in gaps(home))
    assert len(home.switches) <= 200 / PERIOD_S
    assert bool(home.switches) == (half_period_s >= 2.0)  # swings faster than that average out


def test_plans_would_flap_without_the_period(monkeypatch) -> None:
    """The test above can fail."""
    monkeypatch.setattr("coordinator.plans.switching.PERIOD_S", 0.0)
    home = Home()
    for swing in range(100):
        home.slowness = 3.0 if swing % 2 else 1.0
        home.run(2.0)
    assert min(gaps(home)) < 0.6 * PERIOD_S


def test_observations_that_have_not_settled_are_waited_for_but_not_for_ever() -> None:
    switching = Switching()
    assert not switching.is_due("m", {"a": Observed(0.0)}, 0.0)
    moving = {"a": Observed(2 * DRIFT, surprise=1.0)}
    assert not switching.is_due("m", moving, 1.0)
    assert not switching.is_due("m", moving, 1.0 + SETTLE_S - 0.1)
    assert switching.is_due("m", moving, 1.0 + SETTLE_S)
    settled = Switching()
    settled.is_due("m", {"a": Observed(0.0)}, 0.0)
    moved = {"a": Observed(2 * DRIFT)}
    assert not settled.is_due("m", moved, 1.0)
    assert not settled.is_due("m", moved, 0.9 + HEARD_S)
    assert settled.is_due("m", moved, 1.0 + HEARD_S)


def test_the_period_grows_with_what_preparing_takes() -> None:
    switching = Switching()
    assert switching.period_s == PERIOD_S
    for _ in range(20):
        switching.prepared(5.0)
    assert switching.period_s == pytest.approx(50.0, rel=1e-3)
    still, moved = {"a": Observed(0.0)}, {"a": Observed(2 * DRIFT)}
    switching.is_due("m", still, 0.0)
    switching.is_due("m", moved, 1.0)
    assert switching.is_due("m", moved, 1.0 + HEARD_S)
    assert switching.accepts("m", 100.0, 10.0)
    switching.is_due("m", still, 45.0)
    assert not switching.is_due("m", still, 50.0)
    assert switching.is_due("m", still, 1.1 + HEARD_S + 50.0)


def test_a_look_that_changes_nothing_delays_the_next_one_less() -> None:
    switching = Switching(preparing_s=2.0)
    still, moved = {"a": Observed(0.0)}, {"a": Observed(2 * DRIFT)}
    switching.is_due("m", still, 0.0)
    switching.is_due("m", moved, 1.0)
    assert switching.is_due("m", moved, 2.0)
    assert not switching.accepts("m", 1.0, 1.0)
    switching.is_due("m", still, 3.0)
    assert not switching.is_due("m", still, 1.9 + switching.period_s / LOOKS_IN_PERIOD)
    assert switching.is_due("m", still, 2.0 + switching.period_s / LOOKS_IN_PERIOD)


def test_a_gain_is_weighed_against_the_cost_of_the_change() -> None:
    switching = Switching()
    assert switching.accepts("m", 1.0, 0.9)
    assert not switching.accepts("m", 1.0, 0.96)
    for _ in range(20):
        switching.prepared(60.0)  # weights over a slow link
    assert not switching.accepts("m", 1.0, 0.9)  # for a single request
    for request in range(400):
        switching.is_due("m", {"a": Observed(0.0)}, request * 0.1)
    assert switching.accepts("m", 1.0, 0.9)
    assert math.isclose(switching.preparing_s, 60.0, rel_tol=1e-3)
    switching.forget("m")
    assert not switching.accepts("m", 1.0, 0.9)
