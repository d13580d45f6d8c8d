"""When to look for another plan since devices or links are not what they were, and whether to take
it. Pure: it takes `now`, reads no clock.

A model's plan was made by the costs of some moment, its *basis*. When what is observed has moved
away from that and has settled, another plan is looked for. It is taken if what it gains over the
requests of a horizon is worth more than preparing it costs. Then nothing is looked for during a
period, so that plans change for this reason at most once per period, however the load oscillates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

# docs/adr/0005-replanning.md: requests are up to half slower while a plan is prepared, so a period
# of ten times that costs 5 % at worst; and at least so long that estimates have settled.
PERIOD_S = 4.0
PERIOD_IN_PREPARINGS = 10.0
# A look that changes nothing costs planning alone.
LOOKS_IN_PERIOD = 4
# Smaller drifts don't move a cut by a row; transfers that wait for each other look like slow links.
DRIFT = math.log(1.2)
LINK_DRIFT = math.log(1.5)
# While observations still surprise this much, the estimate is on its way; but not for ever. Quick
# requests are heard for a moment: a plan made when half of a change is known stays for a period.
SURPRISE = math.log(1.25)
HEARD_S = 1.0
SETTLE_S = 3.0
# How far ahead the present load is believed.
HORIZON_S = 60.0
# Predictions err by more than this; and a plan that gains nothing else is not worth the change.
LEAST_GAIN = 0.05
# Requests are slower by up to this much while devices prepare sessions beside what they compute.
PREPARING_SHARE = 0.5
_NEWEST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Observed:
    """What is known of a device or link now: the logarithm of its factor over what was measured
    first, and of the last observation over that; `drift` is how far it may move.
    """

    log_factor: float
    surprise: float = 0.0
    drift: float = DRIFT


@dataclass(slots=True)
class _Watch:
    """One model's plan."""

    basis: Mapping[str, float]
    looked_s: float = -math.inf
    changed_s: float = -math.inf
    moved_s: float | None = None
    begun_s: float = 0.0
    requests: int = 0
    before: int = 0

    def count(self, now: float) -> None:
        """Another request; those of older horizons are forgotten."""
        if now - self.begun_s >= HORIZON_S:
            self.before = self.requests if now - self.begun_s < 2 * HORIZON_S else 0
            self.begun_s, self.requests = now, 0
        self.requests += 1


@dataclass(slots=True)
class Switching:
    """Every model's plan in force."""

    preparing_s: float = 0.0
    _watched: dict[str, _Watch] = field(default_factory=dict)

    @property
    def period_s(self) -> float:
        """At most one change of a plan in this time."""
        return max(PERIOD_S, PERIOD_IN_PREPARINGS * self.preparing_s)

    def is_due(self, model: str, seen: Mapping[str, Observed], now: float) -> bool:
        """After a request: whether another plan is to be looked for, now."""
        factors = {name: each.log_factor for name, each in seen.items()}
        watch = self._watched.setdefault(model, _Watch(factors, begun_s=now))
        watch.count(now)
        moved = [
            name
            for name, each in seen.items()
            if abs(each.log_factor - watch.basis.get(name, each.log_factor)) > each.drift
        ]
        if not moved:
            watch.moved_s = None
            watch.basis = {**factors, **watch.basis}
            return False
        if watch.moved_s is None:
            watch.moved_s = now
        settled = all(abs(seen[name].surprise) < SURPRISE for name in moved)
        moving_s = now - watch.moved_s
        if moving_s < (HEARD_S if settled else SETTLE_S):
            return False
        if now - watch.changed_s < self.period_s:
            return False
        if now - watch.looked_s < self.period_s / LOOKS_IN_PERIOD:
            return False
        watch.basis, watch.looked_s, watch.moved_s = factors, now, None
        return True

    def prepared(self, seconds: float) -> None:
        """A plan's programs were made ready on its devices in this time."""
        self.preparing_s += _NEWEST_SHARE * (seconds - self.preparing_s)

    def accepts(self, model: str, old_s: float, new_s: float) -> bool:
        """Whether a plan that is predicted to answer in `new_s` is to replace one that answers in
        `old_s`, both by what is known now; if so, the period begins.
        """
        gain_s = old_s - new_s
        if gain_s < LEAST_GAIN * old_s:
            return False
        watch = self._watched.get(model)
        requests = max(watch.requests, watch.before, 1) if watch else 1
        if gain_s * requests <= PREPARING_SHARE * self.preparing_s:
            return False
        if watch:
            watch.changed_s = watch.looked_s
        return True

    def forget(self, model: str) -> None:
        """The model is not served any more."""
        self._watched.pop(model, None)
