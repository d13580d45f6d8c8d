"""Costs from rates: the definition, and the prior of a new device."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.costs.affine import LayerRates
from coordinator.costs.rates import RateCosts
from coordinator.planning.single_device import unsplit_works
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import load_kind
from models.operators.work import NodeWork
from models.tensors.memory import LARGEST_MATRIX_BYTES
from protos.wire.facts import ONNXRUNTIME
from tests.planning.support import real

CONV = NodeWork("convolution", 10**9, 4000, 8000, 4 * 10**6, taps=9)


def changed(work: NodeWork, **fields: object) -> NodeWork:
    return NodeWork(**{**work._asdict(), **fields})


def test_seconds_are_flops_over_the_rate() -> None:
    assert RateCosts(2.0).block_s([CONV]) == pytest.approx(0.5)
    assert RateCosts(2.0).block_s([CONV, CONV]) == pytest.approx(1.0)
    assert RateCosts(2.0, run_s=0.1).block_s([CONV, CONV]) == pytest.approx(1.1)


def test_1x1_convolutions_and_weights() -> None:
    costs = RateCosts(1.0, rate_1x1=0.25, weight_ns=100.0)
    assert costs.block_s([CONV]) == pytest.approx(1.0 + 0.1)
    assert costs.block_s([changed(CONV, taps=1)]) == pytest.approx(4.0 + 0.1)
    light = replace(costs, weight_1x1=0.2)
    assert light.block_s([CONV]) == costs.block_s([CONV])
    assert light.block_s([changed(CONV, taps=1)]) == pytest.approx(4.0 + 0.02)
    pool = changed(CONV, layer_type="pooling", taps=1, weight_bytes=0)
    assert costs.block_s([pool]) == pytest.approx(1.0)


def test_classes_of_layers_have_rates_of_their_own() -> None:
    costs = RateCosts(1.0, rate_1x1=0.5, rate_depthwise=0.25, rate_product=0.2)
    depthwise = changed(CONV, groups=4, flop=2 * 9 * 4 * 100, output_channels=4, output_pixels=100)
    grouped = changed(depthwise, groups=2, flop=2 * depthwise.flop)
    product, connected = (
        changed(CONV, layer_type=each, taps=1) for each in ("product", "fully_connected")
    )
    pool = changed(CONV, layer_type="pooling")
    for work, share in (
        (CONV, 1.0),
        (changed(CONV, taps=1), 0.5),
        (depthwise, 0.25),
        (grouped, 1.0),
        (product, 0.2),
        (connected, 0.2),
        (pool, 1.0),
    ):
        assert costs.block_s([work]) == pytest.approx(work.flop * 1e-9 / share)
        assert RateCosts(1.0).block_s([work]) == pytest.approx(work.flop * 1e-9)


def test_maps_cost_bytes_unless_a_convolution_makes_them_beside_its_own() -> None:
    costs, plain = RateCosts(1.0, map_byte_ns=2.0), RateCosts(1.0)
    add = NodeWork("elementwise", 1000, 8000, 4000, 0)
    relu = changed(add, input_bytes=4000)
    for work, byte_count in (
        (CONV, 12000),
        (add, 12000),
        (relu, 0),
        (changed(relu, layer_type="normalisation"), 0),
        (changed(relu, lone=True), 8000),
        (changed(relu, layer_type="concat"), 8000),
    ):
        taken = costs.block_s([work]) - plain.block_s([work])
        assert taken == pytest.approx(byte_count * 2e-9)


@given(st.tuples(*[st.floats(0, 1e-6)] * 5), st.floats(0.01, 100))
def test_scaled_rates_scale_seconds(rates: tuple[float, ...], factor: float) -> None:
    layer = LayerRates(*rates)
    assert layer.scaled(factor).seconds(CONV) == pytest.approx(factor * layer.seconds(CONV))


@pytest.mark.parametrize(("engine", "takes"), [("ncnn", False), ("openvino", True)])
def test_matrices_that_an_engine_leaves_to_onnxruntime_decide_who_computes_a_block(
    engine: str, takes: bool
) -> None:
    other = RateCosts(gflops=60.0, engine=engine)
    costs = RateCosts(gflops=20.0, others=(other,))
    limit = LARGEST_MATRIX_BYTES["ncnn"]
    fits, beyond = (
        NodeWork("fully_connected", 10**7, 10**4, 10**4, size) for size in (limit, limit + 4)
    )
    assert costs.fastest([CONV, fits]) is other
    assert (costs.fastest([CONV, beyond]) is other) is takes
    assert math.isfinite(costs.block_s([CONV, beyond]))


def test_a_pi_4_computes_all_of_vgg16_with_onnxruntime_and_its_convolutions_with_ncnn() -> None:
    (device,) = cluster_of(load_kind("pi4-gbe"), 1).devices
    works = {name: unsplit_works(real(name)) for name in ("vgg16", "vgg16-conv")}
    assert device.costs.fastest(works["vgg16"]).engine == ONNXRUNTIME
    assert device.costs.fastest(works["vgg16-conv"]).engine == "ncnn"
