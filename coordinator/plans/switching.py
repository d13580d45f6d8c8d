"""When to look for another plan because devices or links have changed their speed, and whether to
switch to it. Pure: it takes `now`, reads no clock.

A model's plan was made from the costs of one moment, its *basis*. Once observations have drifted
away from the basis and settled, another plan is looked for. It is taken if its gain over the
requests of a horizon exceeds the cost of preparing it. After a switch, no other is looked for
during a period, so that plans change for this reason at most once per period, however the load
oscillates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.costs.corrections import Observed

# docs/adr/0005-replanning.md: requests are up to half slower while a plan is prepared, so a period
# of ten times that costs 5 % at worst; and at least so long that estimates have settled.
PERIOD_S = 4.0
PERIOD_IN_PREPARINGS = 10.0
# A search that changes nothing costs only planning.
LOOKS_IN_PERIOD = 4
# The part of a drift for which plans are looked at when the period has passed: with less, a search
# takes seconds of CPU and finds the same plan.
WORTH_A_LOOK = 0.25
# While observations still differ this much from the estimate, it is converging; but the wait is
# bounded. Even a settled drift must last HEARD_S: a plan made amid a change stays for a period.
SURPRISE = math.log(1.25)
HEARD_S = 1.0
SETTLE_S = 3.0
# How far ahead the present load is extrapolated.
HORIZON_S = 60.0
# Predictions have larger errors than this; smaller gains are not worth a switch.
LEAST_GAIN = 0.05
# Requests are slowed by up to this much while devices prepare sessions beside them.
PREPARING_SHARE = 0.5
_NEWEST_SHARE = 0.5


@dataclass(slots=True)
class _Watch:
    """The state of one model's plan."""

    seen: Mapping[str, Observed]
    basis: Mapping[str, float]
    looked_at: Mapping[str, float] = field(default_factory=dict)
    looked_s: float = -math.inf
    changed_s: float = -math.inf
    moved_s: float | None = None
    begun_s: float = 0.0
    requests: int = 0
    before: int = 0

    def count(self, now: float) -> None:
        """Counts a request; those before the previous horizon are forgotten."""
        if now - self.begun_s >= HORIZON_S:
            self.before = self.requests if now - self.begun_s < 2 * HORIZON_S else 0
            self.begun_s, self.requests = now, 0
        self.requests += 1

    def look(self, now: float) -> None:
        """Another plan is looked for, from what is seen now."""
        self.basis = self.looked_at = {
            name: observed.log_factor for name, observed in self.seen.items()
        }
        self.looked_s, self.moved_s = now, None


@dataclass(slots=True)
class Switching:
    """The plans in force of all models."""

    preparing_s: float = 0.0
    _watched: dict[str, _Watch] = field(default_factory=dict)

    @property
    def period_s(self) -> float:
        """At most one switch of plans happens in this time."""
        return max(PERIOD_S, PERIOD_IN_PREPARINGS * self.preparing_s)

    def is_due(self, model: str, seen: Mapping[str, Observed], now: float) -> bool:
        """Counts a request, and tells whether to look for another plan now."""
        factors = {name: observed.log_factor for name, observed in seen.items()}
        watch = self._watched.setdefault(model, _Watch(seen, factors, begun_s=now))
        watch.seen = seen
        watch.count(now)
        moved = [
            name
            for name, observed in seen.items()
            if abs(observed.log_factor - watch.basis.get(name, observed.log_factor))
            > observed.drift
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
        watch.look(now)
        return True

    def is_worth_a_look(self, model: str, now: float) -> bool:
        """Whether to look for another plan because the period has passed: if requests have shown
        something new since another was last looked for.
        """
        watch = self._watched.get(model)
        if watch is None or not any(
            abs(observed.log_factor - watch.looked_at.get(name, math.inf))
            > WORTH_A_LOOK * observed.drift
            for name, observed in watch.seen.items()
        ):
            return False
        watch.look(now)
        return True

    def looked_s(self, model: str) -> float:
        """When another plan was last looked for because speeds had changed, or the period had
        passed.
        """
        watch = self._watched.get(model)
        return watch.looked_s if watch else -math.inf

    def prepared(self, seconds: float) -> None:
        """Preparing a plan's programs on its devices took this long."""
        self.preparing_s += _NEWEST_SHARE * (seconds - self.preparing_s)

    def accepts(self, model: str, old_s: float, new_s: float) -> bool:
        """Whether to replace a plan that is predicted to answer in `old_s` by one that answers in
        `new_s`, both from present costs. If so, a new period begins.
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
        """The model is no longer served."""
        self._watched.pop(model, None)
