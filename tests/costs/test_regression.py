"""Regressions recover what was planted, and report their errors honestly."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from coordinator.costs.affine import LayerRates
from coordinator.costs.corrections import CorrectedCosts
from coordinator.costs.profile_json import parse_profile, save_profile
from coordinator.costs.rates import flop_per_s
from coordinator.costs.regression import (
    DeviceProfile,
    LayerRegression,
    RegressionCosts,
    errors,
    fit,
    kind_of,
    pessimistic,
    regress,
)
from coordinator.costs.samples import BLOCK, DRAWS, LAYER, Sample, draw
from models.operators.work import LIGHT, NodeWork
from protos.errors import BadRequest
from protos.wire.facts import ONNXRUNTIME

PLANTED = {
    "convolution": LayerRates(2e-5, 1e-10, 2e-11, 1e-11, 3e-11),
    "pointwise": LayerRates(2e-5, 3e-10, 0.0, 1e-10, 0.0),
    "grouped": LayerRates(1e-5, 8e-10, 1e-10, 0.0, 0.0),
    "depthwise": LayerRates(1e-5, 4e-10, 1e-10, 0.0, 0.0),
    "pooling": LayerRates(1e-5, 0.0, 3e-10, 0.0, 0.0),
    "fully_connected": LayerRates(1e-5, 0.0, 0.0, 0.0, 5e-11),
    "elementwise": LayerRates(1e-5, 0.0, 2e-10, 1e-10, 0.0),
    "normalisation": LayerRates(1e-5, 0.0, 2e-10, 1e-10, 0.0),
    "concat": LayerRates(1e-5, 0.0, 1e-10, 1e-10, 0.0),
    "resize": LayerRates(1e-5, 1e-10, 0.0, 1e-10, 0.0),
    "product": LayerRates(1e-5, 1e-10, 3e-11, 0.0, 5e-11),
    "softmax": LayerRates(1e-5, 2e-9, 0.0, 0.0, 0.0),
    "layer_norm": LayerRates(1e-5, 5e-10, 0.0, 0.0, 0.0),
}
COMPUTE, FUSED, OF_LAYERS = 0.8, 0.25, 0.6


def planted_s(work: NodeWork) -> float:
    return PLANTED[kind_of(work)].seconds(work)


def true_s(sample: Sample) -> float:
    if not sample.is_block:
        return planted_s(sample.what.works[0])
    if sample.kind == LAYER:
        return sum(OF_LAYERS * planted_s(work) for work in sample.what.works)
    return sum(
        (FUSED if kind_of(work) in LIGHT else COMPUTE) * planted_s(work)
        for work in sample.what.works
    )


@cache
def samples(count: int, seed: int) -> list[Sample]:
    rng = random.Random(seed)
    return [draw(kind, rng, 10 ** rng.uniform(5, 7)) for kind in DRAWS for _ in range(count)]


def measured(noise: float, count: int = 24, seed: int = 0) -> list[tuple[Sample, float]]:
    rng = random.Random(seed)
    return [
        (each, true_s(each) * rng.uniform(1 - noise, 1 + noise)) for each in samples(count, seed)
    ]


def by_engine(
    runs: Sequence[tuple[Sample, float]],
) -> list[tuple[Sample, dict[str, float]]]:
    return [(sample, {ONNXRUNTIME: seconds}) for sample, seconds in runs]


def test_planted_coefficients_are_recovered() -> None:
    profile = fit(by_engine(measured(0.0)), {"cpu": "test"})
    assert set(profile.fits) == {*PLANTED, "tokenwise"}
    for kind, each in profile.fits.items():
        assert each.mape < 1e-6, kind
        assert each.samples == 24
    assert profile.compute_scale == pytest.approx(COMPUTE, rel=1e-3)
    assert profile.light_scale == pytest.approx(FUSED, rel=1e-2)
    assert profile.block_mape < 1e-4
    rates = profile.fits["convolution"].rates
    assert rates.flop_s == pytest.approx(1e-10, rel=1e-3)
    assert rates.fixed_s == pytest.approx(2e-5, rel=1e-3)
    costs = RegressionCosts(profile)
    for layer, seconds in measured(0.0, 12, seed=9):
        if layer.kind == LAYER:
            assert costs.block_s(layer.what.works) == pytest.approx(seconds, rel=1e-3)


def test_compute_is_never_free() -> None:
    """However odd the blocks that were measured: these take as long as their light layers."""
    layers = [each for each in measured(0.0) if not each[0].is_block]
    odd = [
        (block, 100 * sum(planted_s(work) for work in block.what.works if kind_of(work) in LIGHT))
        for block, _ in measured(0.0)
        if block.kind == BLOCK
    ]
    profile = fit(by_engine([*layers, *odd]), {})
    assert profile.compute_scale == profile.light_scale > 0
    assert profile.block_mape > 0.1


def test_noise_is_reported_and_other_samples_are_predicted() -> None:
    profile = fit(by_engine(measured(0.1)), {})
    assert 0.02 < profile.fits["convolution"].mape < 0.1
    assert abs(profile.fits["convolution"].bias) < 0.05
    costs = RegressionCosts(profile)
    for kind, most in ((BLOCK, 0.05), (LAYER, 0.15)):
        ratios = [
            costs.block_s(sample.what.works) / seconds
            for sample, seconds in measured(0.0, 12, seed=9)
            if sample.kind == kind
        ]
        assert errors(np.array(ratios))[0] < most


@pytest.mark.parametrize(
    ("kind", "before"),
    [("product", "pointwise"), ("softmax", "elementwise"), ("layer_norm", "normalisation")],
)
def test_a_profile_from_before_predicts_by_the_kind_that_it_has(kind: str, before: str) -> None:
    profile = fit(by_engine(measured(0.0)), {})
    (work,) = draw(kind, random.Random(1), 1e6).what.works
    rates = RegressionCosts(profile).engines[0].layer_rates(work)
    assert rates == profile.fits[kind].rates.scaled(profile.compute_scale)
    planted = OF_LAYERS * PLANTED[kind].seconds(work)
    assert rates.seconds(work) == pytest.approx(planted, rel=1e-3)
    old = replace(profile, fits={name: each for name, each in profile.fits.items() if name != kind})
    scale = profile.light_scale if before in LIGHT else profile.compute_scale
    assert RegressionCosts(old).engines[0].layer_rates(work) == profile.fits[before].rates.scaled(
        scale
    )


def test_light_layers_cost_little_behind_convolutions_alone() -> None:
    profile = fit(by_engine(measured(0.0)), {})
    (lone,) = draw("elementwise", random.Random(1), 1e6).what.works
    assert lone.lone
    costs = RegressionCosts(profile)
    behind = costs.engines[0].layer_rates(lone._replace(lone=False))
    assert behind.input_byte_s == pytest.approx(FUSED * 2e-10, rel=1e-2)
    assert costs.engines[0].layer_rates(lone).input_byte_s == pytest.approx(
        OF_LAYERS * 2e-10, rel=1e-2
    )


def test_errors_are_relative_to_what_was_measured() -> None:
    mape, bias = errors(np.array([1.1, 0.9, 1.3]))
    assert mape == pytest.approx(0.5 / 3)
    assert bias == pytest.approx(0.3 / 3)


def test_rates_are_never_negative() -> None:
    rng = np.random.default_rng(0)
    features = rng.uniform(1, 2, (30, 5))
    seconds = np.maximum(features @ [1.0, -0.5, 0.2, 0.0, 0.1], 0.01)
    assert min(regress(features, seconds)) >= 0


def test_small_samples_count_as_much_as_large_ones() -> None:
    """Least squares without weights would fit the large one and miss the small ones by far."""
    sizes = np.array([1.0, 2.0, 3.0, 1000.0])
    seconds = np.array([1.0, 2.0, 3.0, 1500.0])
    (coefficient,) = regress(sizes[:, None], seconds)
    assert coefficient < 1.1


def test_a_layer_type_without_samples_gets_the_worst_rates() -> None:
    known = DeviceProfile(
        {
            "convolution": LayerRegression(LayerRates(1, 2, 3, 4, 5), 9, 0, 0),
            "pooling": LayerRegression(LayerRates(5, 4, 3, 2, 1), 9, 0, 0),
        },
    )
    assert pessimistic(known.fits) == LayerRates(5, 4, 3, 4, 5)
    opaque = NodeWork("opaque", 10, 1, 1, 1)
    costs = RegressionCosts(known)
    assert costs.block_s([opaque]) == pytest.approx(5 + 40 + 3 + 4 + 5)
    timed = opaque._replace(pace=3.0)
    assert costs.block_s([timed]) == pytest.approx(30 / flop_per_s(costs))


def test_too_few_samples_make_no_fit() -> None:
    few = [each for each in measured(0.0) if each[0].kind == "convolution"][:3]
    assert fit(by_engine(few), {}).fits == {}
    assert fit([], {}) == DeviceProfile({})


def test_block_costs_are_affine_in_the_tile() -> None:
    costs = RegressionCosts(fit(by_engine(measured(0.05)), {}))
    works = [sample.what.works[0] for sample, _ in measured(0.0, 4)]
    total = sum(costs.engines[0].layer_rates(work).seconds(work) for work in works)
    assert costs.block_s(works) == pytest.approx(total)


def two_engines() -> DeviceProfile:
    """A device whose second engine takes half as long, and computes no pooling and no softmax."""
    return fit(
        [
            (
                sample,
                {ONNXRUNTIME: seconds}
                | ({"other": seconds / 2} if sample.kind not in ("pooling", "softmax") else {}),
            )
            for sample, seconds in measured(0.0)
        ],
        {},
    )


def test_each_block_is_computed_by_the_engine_that_is_faster_at_it() -> None:
    profile = two_engines()
    assert profile.engine == ONNXRUNTIME
    assert profile.others.keys() == {"other"}
    costs = RegressionCosts(profile)
    main, other = costs.engines
    block = [sample.what.works for sample, _ in measured(0.0, 4, seed=5) if sample.kind == BLOCK]
    convolutions = [work for work in block[0] if kind_of(work) == "convolution"]
    assert convolutions
    assert costs.block_s(convolutions) == other.program_s(convolutions)
    assert other.program_s(convolutions) == pytest.approx(main.program_s(convolutions) / 2, rel=0.1)
    (softmax,) = draw("softmax", random.Random(1), 1e6).what.works
    assert costs.block_s([softmax]) == main.program_s([softmax]) < other.program_s([softmax])


def test_a_correction_applies_to_every_engine() -> None:
    profile = two_engines()
    works = draw("convolution", random.Random(1), 1e6).what.works
    plain, corrected = RegressionCosts(profile), CorrectedCosts(RegressionCosts(profile), 3.0)
    for engine, slower in zip(plain.engines, corrected.engines, strict=True):
        assert engine.engine == slower.engine
        assert slower.program_s(works) == pytest.approx(3.0 * engine.program_s(works))


def test_profiles_of_several_engines_survive_json() -> None:
    profile = two_engines()
    text = save_profile(profile)
    assert '"format": 3' in text
    assert parse_profile(text) == profile
    broken = json.loads(text)
    del broken["others"]["other"]["fits"]
    with pytest.raises(BadRequest, match=r"others\.other\.fits"):
        parse_profile(json.dumps(broken))


def test_profiles_survive_json() -> None:
    profile = fit(by_engine(measured(0.1)), {"cpu": "Cortex-A53", "cores": "4"})
    assert parse_profile(save_profile(profile)) == profile


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("{", "["), "profile"),
        (('"format": 2', '"format": 1'), "format"),
        (('"blocks"', '"blocs"'), "blocs|blocks"),
        (('"samples": 24', '"samples": -1'), "samples"),
        (('"compute_scale": ', '"compute_scale": -'), "compute_scale"),
    ],
)
def test_files_that_are_no_profiles(change: tuple[str, str], fault: str) -> None:
    text = save_profile(fit(by_engine(measured(0.0)), {"cpu": "x"}))
    with pytest.raises(BadRequest, match=fault):
        parse_profile(text.replace(*change, 1))


def test_kinds_of_convolutions() -> None:
    work = NodeWork("convolution", 2 * 9 * 8 * 100, 1, 1, 1, 4, 4, 100, taps=9)
    assert kind_of(work) == "convolution"
    assert kind_of(work._replace(taps=1)) == "pointwise"
    assert kind_of(work._replace(groups=2)) == "grouped"
    assert kind_of(work._replace(groups=4, flop=2 * 9 * 4 * 100)) == "depthwise"
    assert kind_of(work._replace(layer_type="pooling")) == "pooling"
