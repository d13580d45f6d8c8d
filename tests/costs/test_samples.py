"""Samples: of every kind and size, runnable, and in bounded time."""

import random

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from coordinator.costs.regression import kind_of
from coordinator.costs.sample_choice import COUNTS, Sampling
from coordinator.costs.samples import DRAWS, Sample, draw
from models.operators import TABLE
from protos.wire.facts import ONNXRUNTIME


def run(sample: Sample) -> list[np.ndarray]:
    """As a worker does: weights at random, one thread."""
    model = onnx.ModelProto.FromString(sample.what.program.graph)
    rng = np.random.default_rng(0)
    for ref in sample.what.program.weights:
        assert ref.sha256 == "", "filled at random by the worker"
        values = rng.random(ref.dims, dtype=np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, ref.name))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {spec.tensor: rng.random(spec.dims, dtype=np.float32) for spec in sample.what.inputs}
    return session.run(None, feeds)


@pytest.mark.parametrize("kind", DRAWS)
def test_samples_run_and_their_work_is_what_they_compute(kind: str) -> None:
    rng = random.Random(1)
    for _ in range(6):
        sample = draw(kind, rng, 3e6)
        (output,) = run(sample)
        last = sample.what.works[-1]
        assert last.output_bytes == output.nbytes
        assert len(sample.what.works) == 1 or sample.is_block
        if not sample.is_block:
            assert kind_of(sample.what.works[0]) == kind


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("flop", [1e4, 1e6, 1e8])
def test_sizes_are_near_what_was_asked(kind: str, flop: float) -> None:
    rng = random.Random(2)
    sizes = [draw(kind, rng, flop).flop for _ in range(3)]
    smallest = 1e6 if kind == "block" else 1e5
    largest = (
        2e7 if kind not in ("convolution", "pointwise", "block", "grouped", "depthwise") else 1e12
    )
    assert all(size <= max(10 * flop, smallest) for size in sizes)
    assert all(size >= min(flop / 10, largest / 10) for size in sizes)


def test_every_layer_type_of_the_table_is_measured() -> None:
    # Products of matrices are predicted as the 1x1 convolutions that they are like, and what a tail
    # computes is not known.
    types = {operator.layer_type for operator in TABLE.values()} - {"product", "opaque"}
    assert types <= set(DRAWS)
    assert set(COUNTS) == set(DRAWS)


def device_s(sample: Sample, gflops: float) -> float:
    return sum(2e-5 + work.flop / (gflops * 1e9) for work in sample.what.works)


@pytest.mark.parametrize("gflops", [0.2, 2.0, 100.0])
def test_sampling_follows_the_devices_speed(gflops: float) -> None:
    sampling, longest = Sampling(budget_s=1e9, seed=3), 0.0
    while (sample := sampling.next()) is not None:
        seconds = device_s(sample, gflops)
        longest = max(longest, seconds)
        sampling.record(sample, {ONNXRUNTIME: seconds}, 4 * seconds)
    assert sampling.progress == 1.0
    largest = max(sample.flop for sample, _ in sampling.measured)
    tile = min(3e8, gflops * 1e9 * 0.25)  # on a slow device too, where it takes no longer than this
    wanted = max(gflops * 1e9 * 0.04, tile)
    assert wanted / 10 < largest < wanted * 3
    assert longest < 0.75


def test_sampling_ends_when_its_time_is_used_up() -> None:
    sampling, count = Sampling(budget_s=10.0), 0
    progress = []
    while (sample := sampling.next()) is not None:
        count += 1
        sampling.record(sample, {ONNXRUNTIME: device_s(sample, 2.0)}, 0.5)
        progress.append(sampling.progress)
    assert count == 20
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    assert {sample.kind for sample, _ in sampling.measured} == set(COUNTS), "of every kind"


def test_a_sample_that_fails_is_skipped() -> None:
    sampling = Sampling(budget_s=1.0)
    while (sample := sampling.next()) is not None:
        sampling.record(sample, {}, 0.3)
    assert not sampling.measured
    assert sampling.progress == 1.0


def test_sampling_stops_early_when_the_error_is_small() -> None:
    sampling, count = Sampling(budget_s=1e9), 0
    while (sample := sampling.next()) is not None:
        count += 1
        sampling.record(sample, {ONNXRUNTIME: device_s(sample, 50.0)}, 0.01)
    assert count < sum(COUNTS.values())
    assert sampling.profile({}).block_mape < 0.05


def test_samples_are_seeded() -> None:
    def programs(seed: int) -> list[str]:
        sampling = Sampling(seed=seed)
        return [sampling.next().what.program.sha256 for _ in range(5)]  # type: ignore[union-attr]

    assert programs(1) == programs(1)
    assert programs(1) != programs(2)
