"""What observed tasks say about a device's predictions: throttling, other load, a bad profile.

The state is pure and takes `now`. Each device has one factor, observed over predicted seconds,
followed by an exponential average in the logarithm whose time constant is in seconds, so that a
burst of tasks counts no more than a steady trickle. One odd task moves it by no more than a
bounded step; a second one that is odd the same way counts for half: a lasting change wins within
a few observations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from coordinator.costs.affine import AffineCosts, Costs, LayerRates
from models.work import Work

# Half of a lasting change is believed after about this long.
_TIME_CONSTANT_S = 20.0
# However close together they are, ten tasks should settle a first estimate.
_LEAST_WEIGHT = 0.2
# Observations this far off twice in the same direction are a change, not noise.
_SURPRISE = math.log(1.25)
_CHANGE_WEIGHT = 0.5
# A task that was ten times slower than predicted counts as one this much slower.
_LARGEST_STEP = math.log(2.0)
_BOUNDS = (math.log(0.05), math.log(20.0))
# What one plan's tasks have shown counts half when those of others are newer by seven tenths of it:
# heat and other load change within minutes.
_OWN_TIME_CONSTANT_S = 300.0
# Shorter tasks measure the event loop.
_LEAST_PREDICTED_S = 1e-3


@dataclass(frozen=True, slots=True)
class Correction:
    """One device's factor, as its logarithm, and what it rests on; `surprise` is by how much the
    logarithm of the last observation was off.
    """

    log_factor: float = 0.0
    observations: int = 0
    updated_s: float = 0.0
    surprise: float = 0.0

    @property
    def factor(self) -> float:
        """Observed over predicted seconds; 1 if nothing was observed."""
        return math.exp(self.log_factor)

    def observed(self, predicted_s: float, seconds: float, now: float) -> Correction:
        """After a task that was predicted (uncorrected) to take `predicted_s`."""
        if predicted_s < _LEAST_PREDICTED_S or seconds <= 0:
            return self
        error = math.log(seconds / predicted_s) - self.log_factor
        step = max(-_LARGEST_STEP, min(_LARGEST_STEP, error))
        elapsed = max(0.0, now - self.updated_s) if self.observations else _TIME_CONSTANT_S
        weight = max(_LEAST_WEIGHT, 1.0 - math.exp(-elapsed / _TIME_CONSTANT_S))
        if min(abs(error), abs(self.surprise)) > _SURPRISE and error * self.surprise > 0:
            weight = max(weight, _CHANGE_WEIGHT)
        low, high = _BOUNDS
        factor = min(high, max(low, self.log_factor + weight * step))
        return Correction(factor, self.observations + 1, now, error)

    def with_own(self, own: Correction) -> Correction:
        """For one plan, by its `own` tasks, the less the older they are: its tiles may suit the
        device's kernels better or worse than those of other plans and models.
        """
        if not own.observations:
            return self
        newer_s = max(0.0, self.updated_s - own.updated_s)
        weight = math.exp(-newer_s / _OWN_TIME_CONSTANT_S)
        log_factor = weight * own.log_factor + (1.0 - weight) * self.log_factor
        return replace(self, log_factor=log_factor)


@dataclass(frozen=True, slots=True)
class Corrections:
    """The corrections of all devices, by id."""

    by_device: Mapping[str, Correction]

    @classmethod
    def none(cls) -> Corrections:
        """Before anything was observed."""
        return cls({})

    def factor(self, device: str) -> float:
        """Observed over predicted seconds of a device; 1 if nothing was observed."""
        return self.of(device).factor

    def of(self, device: str) -> Correction:
        """What is known of a device."""
        return self.by_device.get(device, Correction())

    def observed(self, device: str, predicted_s: float, seconds: float, now: float) -> Corrections:
        """After one task of a device. `predicted_s` is its uncorrected prediction."""
        before = self.of(device)
        after = before.observed(predicted_s, seconds, now)
        return self if after is before else Corrections({**self.by_device, device: after})

    def without(self, device: str) -> Corrections:
        """After a device got a new profile, or left for good."""
        return Corrections({k: v for k, v in self.by_device.items() if k != device})


@dataclass(frozen=True)
class CorrectedCosts(AffineCosts):
    """A device's costs, times a factor."""

    costs: Costs
    factor: float

    @property
    def task_s(self) -> float:
        """Seconds that any run of a program costs, whatever it computes."""
        return self.costs.task_s * self.factor

    def layer_rates(self, work: Work) -> LayerRates:
        """Rates of a node; equal for all tiles of it that keep its channels."""
        return self.costs.layer_rates(work).scaled(self.factor)
