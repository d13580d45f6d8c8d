"""Rates that explain published times best: least squares of relative errors, few numbers.

A network's seconds are its FLOPs over the rates of their classes, its bytes of maps times one
number, and what its preset charges for weights. No class computes faster than the processor can.
A Pi 4 is a Pi 5 that takes a number of times as long.

That every layer pays for its maps, not elementwise ones alone, was chosen with OpenCV's times in
sight: these are no independent test of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.anchors.work import Work, nodes_of
from coordinator.costs.rates import RateCosts
from models.tensors.arrays import Floats

# What a source says of one measurement: see `benchmarks.anchors.__main__.rows`.
Row = Mapping[str, Any]
# Of a Pi 5: four Cortex-A76 of 2.4 GHz, each two multiply-adds of four numbers per cycle. An engine
# that computes convolutions by Winograd's algorithm saves multiplications, and may seem faster.
PEAK_GFLOPS = 4 * 2.4 * 16
# Classes that share a rate. The first form makes the presets: the other one has more numbers, and
# predicts networks that it has not seen no better.
FORMS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "one rate": (("dense", "1x1", "depthwise", "product"),),
    "a rate per class": (("dense",), ("1x1",), ("depthwise",), ("product",)),
}
# A rate is tested by leaving out a network only if it makes up this share of another one's time.
_TESTED_SHARE = 0.05
_FAMILY = re.compile(r"[a-z]+\d*")


@dataclass(frozen=True, slots=True, eq=False)
class Time:
    """A row of published times whose network is known, and the network's work."""

    row: Row
    work: Work

    @property
    def network(self) -> str:
        """The network's name."""
        return str(self.row["network"])

    @property
    def family(self) -> str:
        """What networks of several sizes have in common."""
        found = _FAMILY.match(self.network)
        assert found is not None
        return found[0]

    @property
    def seconds(self) -> float:
        """As published."""
        return float(self.row["ms"]) * 1e-3

    def error(self, costs: RateCosts) -> float:
        """Predicted / published - 1."""
        return costs.program_s(nodes_of(self.work)) / self.seconds - 1


def fit(
    times: Sequence[Time], form: str, base: RateCosts, most_gflops: float = PEAK_GFLOPS
) -> RateCosts:
    """`base` with the rates, of at most `most_gflops`, and the cost of maps, that explain these
    times.
    """
    groups = FORMS[form]
    flops = [[sum(_flop(time.work, name) for name in group) for group in groups] for time in times]
    maps = [[sum(work.map_bytes for work in time.work.values())] for time in times]
    amounts = np.hstack([np.array(flops, float), np.array(maps, float)])
    least = np.array([1e-9 / most_gflops] * len(groups) + [0.0])
    slopes = least + _regress(amounts, times, base, amounts @ least)
    rates = {
        name: 1e-9 / slope
        for group, slope in zip(groups, slopes[:-1].tolist(), strict=True)
        for name in group
    }
    gflops = rates["dense"]
    return replace(
        base,
        gflops=gflops,
        rate_1x1=rates["1x1"] / gflops,
        rate_depthwise=rates["depthwise"] / gflops,
        rate_product=rates["product"] / gflops,
        map_byte_ns=float(slopes[-1]) * 1e9,
    )


def slower(costs: RateCosts, times: Sequence[Time], base: RateCosts) -> tuple[RateCosts, float]:
    """The costs of a device that takes a number of times as long as `costs` for all but weights,
    of which `base` has the cost; and that number.
    """
    alike = replace(costs, weight_ns=0.0)
    amounts = np.array([[alike.program_s(nodes_of(time.work))] for time in times])
    factor = float(_regress(amounts, times, base, np.zeros(len(times)))[0])
    slow = replace(
        costs,
        gflops=costs.gflops / factor,
        map_byte_ns=costs.map_byte_ns * factor,
        weight_ns=base.weight_ns,
    )
    return slow, factor


def held_out(
    times: Sequence[Time], form: str, base: RateCosts, by: Callable[[Time], str]
) -> list[float]:
    """The error of each time, by rates that were fitted without those that are alike `by`."""
    costs = {
        left: fit([time for time in times if by(time) != left], form, base)
        for left in {by(time) for time in times}
    }
    return [time.error(costs[by(time)]) for time in times]


def untested(times: Sequence[Time], form: str, costs: RateCosts) -> list[str]:
    """Groups of classes whose rate fewer than two of these networks show."""
    rates_alone = replace(costs, map_byte_ns=0.0, weight_ns=0.0)

    def share(time: Time, group: Sequence[str]) -> float:
        shown = {name: amounts for name, amounts in time.work.items() if name in group}
        return rates_alone.program_s(nodes_of(shown)) / costs.program_s(nodes_of(time.work))

    return [
        ", ".join(group)
        for group in FORMS[form]
        if sum(share(time, group) >= _TESTED_SHARE for time in times) < 2
    ]


def _flop(work: Work, name: str) -> int:
    """FLOPs at the rate of a class; what has no rate of its own computes as dense convolutions."""
    return work[name].flop + (work["other"].flop + work["fused"].flop) * (name == "dense")


def _regress(amounts: Floats, times: Sequence[Time], base: RateCosts, known_s: Floats) -> Floats:
    """Non-negative slopes of the amounts, by relative error, to what the seconds are beyond those
    that are known, and those of `base` for weights.
    """
    from sklearn.linear_model import LinearRegression

    seconds = np.array([time.seconds for time in times])
    weights = np.array([sum(work.weight_bytes for work in time.work.values()) for time in times])
    rest = seconds - known_s - weights * base.weight_ns / 4 * 1e-9
    scale = np.maximum(amounts.max(axis=0), 1e-30)
    model = LinearRegression(positive=True, fit_intercept=False)
    model.fit(amounts / scale, rest, sample_weight=1.0 / seconds**2)
    slopes: Floats = model.coef_ / scale
    return slopes
