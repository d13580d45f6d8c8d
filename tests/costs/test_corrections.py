"""Corrections follow a device that is slower or faster than predicted, and not its hiccups."""

import random

import pytest

from coordinator.costs.affine import LayerRates
from coordinator.costs.corrections import CorrectedCosts, Correction, Corrections, is_measured
from coordinator.costs.rates import RateCosts
from coordinator.costs.regression import DeviceProfile, LayerRegression, RegressionCosts
from models.operators.work import NodeWork


def after(
    factors: list[float], every_s: float = 1.0, start: Correction | None = None
) -> Correction:
    correction = start or Correction()
    now = correction.updated_s
    for factor in factors:
        now += every_s
        correction = correction.observed(0.2, 0.2 * factor, now)
    return correction


def test_correction_without_observations_is_one() -> None:
    assert Correction().factor == 1.0
    assert Corrections.none().factor("anybody") == 1.0


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.5, 3.0])
def test_ten_requests_find_a_steady_factor(factor: float) -> None:
    assert after([factor] * 10).factor == pytest.approx(factor, rel=0.1)
    assert after([factor] * 25).factor == pytest.approx(factor, rel=0.01)


def test_noise_averages_out() -> None:
    rng = random.Random(0)
    noisy = after([1.4 * rng.uniform(0.85, 1.15) for _ in range(60)])
    assert noisy.factor == pytest.approx(1.4, rel=0.1)


def test_correction_moves_little_after_a_hiccup() -> None:
    steady = after([1.0] * 20)
    assert after([50.0], start=steady).factor < 1.2
    assert after([50.0, 1.0, 1.0, 1.0], start=steady).factor < 1.1


def test_throttling_is_believed_within_some_tasks() -> None:
    steady = after([1.0] * 20)
    assert after([2.0] * 15, start=steady).factor > 1.8


def test_after_a_long_silence_one_task_says_more() -> None:
    steady = after([1.0] * 20)
    soon, late = after([1.5], 0.01, steady), after([1.5], 600.0, steady)
    assert late.factor > soon.factor
    assert late.factor == pytest.approx(1.5, rel=0.01)


def test_meaningless_observations_are_ignored() -> None:
    correction = Correction()
    assert correction.observed(1e-5, 1.0, 0.0) is correction
    assert correction.observed(1.0, 0.0, 0.0) is correction


def test_corrections_are_bounded() -> None:
    assert after([1e9] * 200).factor == pytest.approx(20.0)
    assert after([1e-9] * 200).factor == pytest.approx(0.05)


def test_devices_are_apart() -> None:
    both = Corrections.none().observed("a", 0.1, 0.2, 1.0).observed("b", 0.1, 0.05, 2.0)
    assert both.factor("a") > 1 > both.factor("b")
    assert both.without("a").factor("a") == 1.0
    assert both.without("a").factor("b") == both.factor("b")
    assert both.observed("a", 0.0, 1.0, 3.0) is both


def test_corrected_costs_are_multiplied_by_the_factor() -> None:
    work = NodeWork("convolution", 10**9, 1, 1, 1, taps=9)
    costs = CorrectedCosts(RateCosts(1.0, run_s=0.1), 2.0)
    assert costs.block_s([work]) == pytest.approx(2.2)
    (engine,) = costs.engines
    assert engine.task_s == pytest.approx(0.2)


def test_corrected_costs_are_measured_if_a_profile_is_behind_them() -> None:
    profile = DeviceProfile({"convolution": LayerRegression(LayerRates(1e-5, 1e-10), 9, 0.1, 0.0)})
    assert is_measured(CorrectedCosts(CorrectedCosts(RegressionCosts(profile), 2.0), 0.5))
    assert not is_measured(CorrectedCosts(RateCosts(1.0), 2.0))


def test_a_device_whose_observations_no_longer_count_is_corrected_like_the_others() -> None:
    factors = {"a": -0.7, "b": 3.0, "c": -0.5}
    seen = Corrections({name: Correction(each, 9) for name, each in factors.items()})
    assert seen.guessed("b").of("b").log_factor == pytest.approx(-0.6)
    assert seen.guessed("b").of("a") == seen.of("a")
    alone = Corrections({"b": Correction(3.0, 9)})
    assert alone.guessed("b").factor("b") == 1
