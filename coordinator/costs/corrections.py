"""Corrections of a device's predictions by observed tasks: throttling, other load, a bad profile.

The state is pure and takes `now`. Each device has one factor, observed over predicted seconds. It
follows observations by an exponential average of its logarithm with a time constant in seconds, so
that a burst of tasks weighs no more than a steady trickle. One outlier moves it by a bounded step;
a second in the same direction counts half, so that a lasting change wins within a few observations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from coordinator.costs.affine import Costs, EngineCosts, LayerRates
from coordinator.costs.regression import RegressionCosts
from models.operators.work import NodeWork

# About this long after a lasting change, half of it is believed.
_TIME_CONSTANT_S = 20.0
# A first estimate should settle within ten tasks, however close together they are.
_LEAST_WEIGHT = 0.2
# Two observations in a row this far off in the same direction are a change, not noise.
_SURPRISE = math.log(1.25)
_CHANGE_WEIGHT = 0.5
# A task that is slower than predicted by more than this factor counts as this much slower.
_LARGEST_STEP = math.log(2.0)
_BOUNDS = (math.log(0.05), math.log(20.0))
# Observations of one plan weigh half once those of other plans are newer by seven tenths of this:
# heat and other load change within minutes.
_OWN_TIME_CONSTANT_S = 300.0
# The time of shorter tasks is mostly the event loop's.
_LEAST_PREDICTED_S = 1e-3
# Smaller drifts move no cut by a row; concurrent transfers look like slower links.
DRIFT = math.log(1.2)
LINK_DRIFT = math.log(1.5)
# A message between devices takes milliseconds of a request at most; but the first guess is far off.
MESSAGE_DRIFT = math.log(5.0)


@dataclass(frozen=True, slots=True)
class Observed:
    """The present estimate for a device or link, as the logarithm of its factor over the first
    measurement; `surprise` is the logarithm of the last observation over that estimate, `drift` how
    far the factor may move before plans are looked at again.
    """

    log_factor: float
    surprise: float = 0.0
    drift: float = DRIFT


@dataclass(frozen=True, slots=True)
class Correction:
    """One device's factor as its logarithm, and its evidence; `surprise` is the error of the last
    prediction, as a logarithm.
    """

    log_factor: float = 0.0
    observations: int = 0
    updated_s: float = 0.0
    surprise: float = 0.0

    @property
    def factor(self) -> float:
        """Observed over predicted seconds; 1 before any observation."""
        return math.exp(self.log_factor)

    def observed(self, predicted_s: float, seconds: float, now: float) -> Correction:
        """The correction after a task whose uncorrected prediction was `predicted_s`."""
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
        """The correction for one plan, from its `own` tasks, which count less the older they are:
        its tiles may suit the device's kernels better or worse than those of other plans and
        models.
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
        """No observations."""
        return cls({})

    def factor(self, device: str) -> float:
        """Observed over predicted seconds of a device; 1 before any observation."""
        return self.of(device).factor

    def of(self, device: str) -> Correction:
        """The correction of a device."""
        return self.by_device.get(device, Correction())

    def observed(self, device: str, predicted_s: float, seconds: float, now: float) -> Corrections:
        """The corrections after one task of a device; `predicted_s` is its uncorrected
        prediction.
        """
        before = self.of(device)
        after = before.observed(predicted_s, seconds, now)
        return self if after is before else Corrections({**self.by_device, device: after})

    def guessed(self, device: str) -> Corrections:
        """The corrections when what was observed of a device no longer counts: the median of the
        others', since priors are off by about as much on computers of a kind.
        """
        others = self.without(device)
        if not others.by_device:
            return others
        middle = statistics.median(observed.log_factor for observed in others.by_device.values())
        return Corrections({**others.by_device, device: Correction(middle)})

    def without(self, device: str) -> Corrections:
        """The corrections after a device got a new profile, or left for good."""
        return Corrections({k: v for k, v in self.by_device.items() if k != device})


@dataclass(frozen=True)
class CorrectedCosts(Costs):
    """A device's costs multiplied by a factor."""

    costs: Costs
    factor: float

    @cached_property
    def engines(self) -> tuple[EngineCosts, ...]:
        """The device's engines, each by the same factor."""
        engines = self.costs.engines
        return tuple(_CorrectedEngine(costs.engine, costs, self.factor) for costs in engines)


@dataclass(frozen=True)
class _CorrectedEngine(EngineCosts):
    engine: str
    costs: EngineCosts
    factor: float

    @property
    def task_s(self) -> float:
        return self.costs.task_s * self.factor

    def layer_rates(self, work: NodeWork) -> LayerRates:
        return self.costs.layer_rates(work).scaled(self.factor)


def is_measured(costs: Costs) -> bool:
    """Whether they come from a profile; otherwise they are assumed, from a rate."""
    return isinstance(_uncorrected(costs), RegressionCosts)


def block_error(costs: Costs) -> float:
    """The mean relative error of a profile for blocks that it had not seen; 0 without a profile."""
    measured = _uncorrected(costs)
    return measured.profile.block_mape if isinstance(measured, RegressionCosts) else 0.0


def _uncorrected(costs: Costs) -> Costs:
    while isinstance(costs, CorrectedCosts):
        costs = costs.costs
    return costs
