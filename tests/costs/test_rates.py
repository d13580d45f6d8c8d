"""Costs from rates: the definition, and the prior of a new device."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.costs.affine import LayerRates
from coordinator.costs.rates import RateCosts
from models.operators.work import NodeWork

CONV = NodeWork("convolution", 10**9, 4000, 8000, 4 * 10**6, taps=9)


def test_seconds_are_flops_over_the_rate() -> None:
    assert RateCosts(2.0).block_s([CONV]) == pytest.approx(0.5)
    assert RateCosts(2.0).block_s([CONV, CONV]) == pytest.approx(1.0)
    assert RateCosts(2.0, run_s=0.1).block_s([CONV, CONV]) == pytest.approx(1.1)


def test_1x1_convolutions_and_weights() -> None:
    costs = RateCosts(1.0, rate_1x1=0.25, weight_ns=100.0)
    assert costs.block_s([CONV]) == pytest.approx(1.0 + 0.1)
    assert costs.block_s([CONV._replace(taps=1)]) == pytest.approx(4.0 + 0.1)
    light = replace(costs, weight_1x1=0.2)
    assert light.block_s([CONV]) == costs.block_s([CONV])
    assert light.block_s([CONV._replace(taps=1)]) == pytest.approx(4.0 + 0.02)
    pool = CONV._replace(layer_type="pooling", taps=1, weight_bytes=0)
    assert costs.block_s([pool]) == pytest.approx(1.0)


@given(st.tuples(*[st.floats(0, 1e-6)] * 5), st.floats(0.01, 100))
def test_scaled_rates_scale_seconds(rates: tuple[float, ...], factor: float) -> None:
    layer = LayerRates(*rates)
    assert layer.scaled(factor).seconds(CONV) == pytest.approx(factor * layer.seconds(CONV))
