"""Cost models fitted to measurements: one regression per layer type and device [AOFL, 4.4].

Each layer type's seconds are a non-negative combination of 1, FLOPs, and bytes in, out and of
weights, fitted by relative error (weights 1/t^2). Convolutions are four types: 1x1, grouped,
depthwise, others. Two factors per device, measured on fused blocks, scale the costs of single
layers to fused ones: one for layers that compute, one for light layers, which runtimes fuse away.
A third one is measured on transformers' layers, and goes into the fits of what these consist of.
docs/adr/0003-costs.md has the errors, and what else was tried.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from coordinator.costs.affine import NEVER, Costs, EngineCosts, LayerRates, is_too_large
from coordinator.costs.cluster import EndpointOverhead
from coordinator.costs.rates import YARDSTICK
from coordinator.costs.samples import BLOCK, LAYER, Sample
from models.operators.work import LIGHT, NodeWork
from models.tensors.arrays import Floats
from protos.wire.facts import ONNXRUNTIME

# What a block or layer computes, and its seconds.
Measured = tuple[Sequence[NodeWork], float]

_LEAST_SAMPLES = 4
_FOLDS = 5
# Lower bound of the factor for convolutions: fusing saves them less than this, and without the
# bound a few disturbed samples would attribute all time to the light layers.
_LEAST_SCALE = 0.2
# The kind of light layers that follow no convolution, and all kinds that the factor of
# transformers' layers goes into.
_TOKENWISE = "tokenwise"
_OF_TOKENS = ("product", "softmax", "layer_norm", _TOKENWISE)
# What predicts a kind in profiles of versions that did not measure it.
_BEFORE = {"product": "pointwise", "softmax": "elementwise", "layer_norm": "normalisation"}


def kind_of(work: NodeWork) -> str:
    """The regression to which a measured node belongs: its layer type, and for convolutions their
    kernel.
    """
    if work.layer_type != "convolution":
        return work.layer_type
    if work.groups > 1:
        return "depthwise" if work.is_depthwise else "grouped"
    return "pointwise" if work.taps == 1 else "convolution"


@dataclass(frozen=True, slots=True)
class LayerRegression:
    """The regression of one layer type. `mape` and `bias` are those of held-out samples: the means
    of |predicted / measured - 1| and of predicted / measured - 1.
    """

    rates: LayerRates
    samples: int
    mape: float
    bias: float


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """What was measured of an engine on a device: fits by kind, the two factors, and the error on
    fused blocks.
    """

    fits: Mapping[str, LayerRegression]
    compute_scale: float = 1.0
    light_scale: float = 1.0
    blocks: int = 0
    block_mape: float = 0.0
    block_bias: float = 0.0

    def scaled(self, factor: float) -> Self:
        """That of an engine that takes `factor` times as long."""
        return replace(
            self, compute_scale=self.compute_scale * factor, light_scale=self.light_scale * factor
        )


@dataclass(frozen=True, slots=True)
class DeviceProfile(EngineProfile):
    """What was measured of a device: of the engine that computes everything, and of the `others`.

    `fingerprint` identifies the device and runtime (CPU, cores, threads, pace ...); `endpoint` is
    the cost of messages and tasks besides computing, if requests have shown it.
    """

    fingerprint: Mapping[str, str] = field(default_factory=dict)
    engine: str = ONNXRUNTIME
    others: Mapping[str, EngineProfile] = field(default_factory=dict)
    endpoint: EndpointOverhead | None = None

    @classmethod
    def of(cls, main: EngineProfile, **rest: Any) -> Self:
        """The profile of a device whose engine that computes everything is `main`."""
        return cls(**{part.name: getattr(main, part.name) for part in fields(main)}, **rest)


@dataclass(frozen=True)
class RegressionCosts(Costs):
    """Costs from a profile."""

    profile: DeviceProfile

    @cached_property
    def engines(self) -> tuple[EngineCosts, ...]:
        """Those of the profile."""
        main = EngineRegression(self.profile.engine, self.profile)
        kinds = frozenset(self.profile.fits)
        others = self.profile.others.items()
        return (main, *(_PartialEngine(name, profile, kinds) for name, profile in others))


@dataclass(frozen=True)
class EngineRegression(EngineCosts):
    """Costs from the profile of an engine that computes everything. A layer type without samples
    gets the worst rates of all types, except nodes that were timed beside a convolution.
    """

    engine: str
    profile: EngineProfile

    def __post_init__(self) -> None:
        assert self.profile.fits, "a profile has at least one fit"

    def layer_rates(self, work: NodeWork) -> LayerRates:
        """Rates of a node; equal for all of its tiles with the same channels."""
        if work.pace:
            return LayerRates(flop_s=work.pace * self.program_s([YARDSTICK]) / YARDSTICK.flop)
        kind, fits = kind_of(work), self.profile.fits
        if kind in LIGHT and work.lone and _TOKENWISE in fits:
            kind = _TOKENWISE
        elif kind not in fits:
            kind = _BEFORE.get(kind, kind)
        found = fits.get(kind)
        rates = found.rates if found else pessimistic(fits)
        scale = self.profile.light_scale if kind in LIGHT else self.profile.compute_scale
        return rates.scaled(scale)


@dataclass(frozen=True)
class _PartialEngine(EngineRegression):
    """An engine that computes none of the layer types in `sampled` of which it has no samples,
    nothing that only one engine was timed with, and no matrix that is too large for it.
    """

    sampled: Collection[str]

    def layer_rates(self, work: NodeWork) -> LayerRates:
        kind = kind_of(work)
        is_unknown = work.pace or (kind in self.sampled and kind not in self.profile.fits)
        if is_unknown or is_too_large(work, self.engine):
            return NEVER
        return super().layer_rates(work)


def pessimistic(fits: Mapping[str, LayerRegression]) -> LayerRates:
    """The largest of each rate over all layer types."""
    every = [fit.rates for fit in fits.values()]
    return LayerRates(
        max(rates.fixed_s for rates in every),
        max(rates.flop_s for rates in every),
        max(rates.input_byte_s for rates in every),
        max(rates.output_byte_s for rates in every),
        max(rates.weight_byte_s for rates in every),
    )


def fit(
    measured: Sequence[tuple[Sample, Mapping[str, float]]], fingerprint: Mapping[str, str]
) -> DeviceProfile:
    """A profile from samples and the measured seconds of one run of each, by engine."""
    runs: dict[str, list[tuple[Sample, float]]] = {}
    for sample, seconds in measured:
        for engine, engine_s in seconds.items():
            runs.setdefault(engine, []).append((sample, engine_s))
    profiles = {engine: fit_engine(samples) for engine, samples in runs.items()}
    known = {engine: profile for engine, profile in profiles.items() if profile.fits}
    main = max(known, key=lambda engine: len(runs[engine]), default=ONNXRUNTIME)
    profile = known.pop(main, EngineProfile({}))
    others = {
        engine: replace(other, fits=_completed(other.fits, profile.fits, runs[engine]))
        for engine, other in known.items()
    }
    return DeviceProfile.of(profile, fingerprint=dict(fingerprint), engine=main, others=others)


def _completed(
    fits: Mapping[str, LayerRegression],
    main: Mapping[str, LayerRegression],
    measured: Sequence[tuple[Sample, float]],
) -> dict[str, LayerRegression]:
    """An engine's fits; layer types of which it has too few samples are as for the main engine."""
    sampled = {
        kind_of(work) for sample, _ in measured if not sample.is_block for work in sample.what.works
    }
    return {kind: fit for kind, fit in main.items() if kind in sampled} | dict(fits)


def fit_engine(measured: Sequence[tuple[Sample, float]]) -> EngineProfile:
    """An engine's profile from samples and the measured seconds of one run of each."""
    by_kind: dict[str, list[tuple[NodeWork, float]]] = {}
    for sample, seconds in measured:
        if not sample.is_block:
            (work,) = sample.what.works
            by_kind.setdefault(kind_of(work), []).append((work, seconds))
    fits = {
        kind: _fit_kind(measured)
        for kind, measured in by_kind.items()
        if len(measured) >= _LEAST_SAMPLES
    }
    profile = EngineProfile(fits)
    blocks: dict[str, list[Measured]] = {}
    for sample, seconds in measured if fits else ():
        if sample.is_block:
            blocks.setdefault(sample.kind, []).append((sample.what.works, seconds))
    if len(fused := blocks.get(BLOCK, [])) >= _LEAST_SAMPLES:
        profile = _scaled(profile, fused)
    if len(layers := blocks.get(LAYER, [])) >= _LEAST_SAMPLES:
        profile = _with_tokens(profile, layers)
    return profile


def _fit_kind(measured: Sequence[tuple[NodeWork, float]]) -> LayerRegression:
    features = np.array([_features(work) for work, _ in measured])
    seconds = np.array([taken_s for _, taken_s in measured])
    ratios = _held_out(features, seconds)
    mape, bias = errors(ratios)
    return LayerRegression(LayerRates(*regress(features, seconds)), len(seconds), mape, bias)


def _features(work: NodeWork) -> tuple[float, ...]:
    """The features of one sample. For a fully connected layer only its weights count: its
    computation and traffic are proportional to them, and any other dependence would be chance.
    """
    if work.layer_type == "fully_connected":
        return 1.0, 0.0, 0.0, 0.0, work.weight_bytes
    return 1.0, work.flop, work.input_bytes, work.output_bytes, work.weight_bytes


def regress(features: Floats, seconds: Floats) -> list[float]:
    """Non-negative coefficients that minimise the squared relative error."""
    from sklearn.linear_model import LinearRegression

    scale = np.maximum(features.max(axis=0), 1e-30)
    model = LinearRegression(positive=True, fit_intercept=False)
    model.fit(features / scale, seconds, sample_weight=1.0 / seconds**2)
    return [float(value) for value in model.coef_ / scale]


def _held_out(features: Floats, seconds: Floats) -> Floats:
    """Predicted over measured seconds of every sample, by a fit to the other folds."""
    ratios = np.empty(len(seconds))
    fold_of = np.arange(len(seconds)) % min(_FOLDS, len(seconds))
    for fold in range(fold_of.max() + 1):
        held = fold_of == fold
        coefficients = np.array(regress(features[~held], seconds[~held]))
        ratios[held] = features[held] @ coefficients / seconds[held]
    return ratios


def errors(ratios: Floats) -> tuple[float, float]:
    """Mean absolute error and bias of predicted / measured, relative to measured."""
    return float(np.abs(ratios - 1).mean()), float((ratios - 1).mean())


def _with_tokens(profile: EngineProfile, layers: Sequence[Measured]) -> EngineProfile:
    """The profile whose fits of what transformers consist of predict their layers, by one factor.
    Their light layers are not fused with a convolution, but some of them with each other.
    """
    fits = dict(profile.fits)
    if "elementwise" in fits:
        fits[_TOKENWISE] = fits["elementwise"]
    costs = EngineRegression(ONNXRUNTIME, replace(profile, fits=fits))
    sums = np.array([[costs.program_s(works)] for works, _ in layers])
    (factor,) = regress(sums, np.array([seconds for _, seconds in layers]))
    for kind in fits.keys() & _OF_TOKENS:
        fits[kind] = replace(fits[kind], rates=fits[kind].rates.scaled(factor))
    return replace(profile, fits=fits)


def _scaled(profile: EngineProfile, blocks: Sequence[Measured]) -> EngineProfile:
    """The profile with its two factors, fitted to fused blocks by relative error."""
    costs = EngineRegression(ONNXRUNTIME, profile)
    sums = np.zeros((len(blocks), 2))
    for row, (works, _) in enumerate(blocks):
        for work in works:
            column = 1 if kind_of(work) in LIGHT else 0
            sums[row, column] += costs.layer_rates(work).seconds(work)
    seconds = np.array([taken_s for _, taken_s in blocks])
    compute, light = regress(sums, seconds)
    if compute < _LEAST_SCALE:
        sums = sums.sum(axis=1, keepdims=True)
        compute = light = regress(sums, seconds)[0]
    mape, bias = errors(_held_out(sums, seconds))
    return EngineProfile(profile.fits, compute, light, len(blocks), mape, bias)
