"""What emulated devices charge: the preset's costs, times what tiles lose here."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.anchors.work import class_of
from coordinator.costs.rates import RateCosts
from coordinator.costs.samples import DRAWS, draw
from coordinator.tasks.plan import Block, Tile, tile_works
from imbrex.demo.emulation import runtime as runtimes
from imbrex.demo.emulation import throttle as throttles
from imbrex.demo.emulation.runtime import EmulatedRuntime
from imbrex.demo.emulation.settings import Emulation
from imbrex.demo.emulation.throttle import EmulatedThrottle
from imbrex.demo.emulation.whole_maps import (
    WholeMaps,
    any_rows,
    grown,
    maps_of,
    works_of,
    write_maps,
)
from imbrex.kinds.presets import DeviceRates, OtherEngine
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of
from models.cut.cutter import cut
from models.cut.program import BlobSource
from models.tensors.boxes import Box, Span
from protos.failures import BadInput
from tests.worker.clock import FakeClock
from tests.worker.support import conv_program, picture
from worker.engines.base import Place, Ready, Runnable
from worker.engines.onnxruntime import OnnxRuntime
from worker.programs.store import BlobStore

COSTS = RateCosts(1.0, rate_1x1=0.5, rate_depthwise=0.1, rate_product=0.25, map_byte_ns=0.5)


@pytest.fixture(scope="module")
def network():
    return network_of(load("mobilenetv2"))


def piece_of(network, start, stop, rows):
    """Some rows of a block, as a plan has them: the program, and the work that is planned."""
    graph = network.graph
    boxes = {}
    for name in network.outputs(start, stop):
        whole = Box.whole(graph.shape(name))
        boxes[name] = Box((*whole[:2], Span(rows.start, rows.stop), *whole[3:]))
    tile = Tile("pi", boxes)
    block = Block(start, stop, (tile,))
    piece = cut(graph, network.nodes(start, stop), boxes, BlobSource())
    return piece, tile_works(network, block, tile)


@pytest.mark.parametrize("rows", [range(0, 5), range(4, 9), range(9, 14)])
def test_the_work_of_a_program_is_that_of_its_tile(network, rows):
    piece, planned = piece_of(network, 21, 30, rows)
    found = works_of(piece.program, {name: box.shape for name, box in piece.inputs.items()})

    def sums(works):
        rates = [(class_of(each), each.flop, each.weight_bytes) for each in works if each.flop]
        heavy = [rate for rate in rates if rate[0] not in ("fused", "other")]
        return sorted(heavy)

    assert sums(found) == sums(planned)
    # Beside the network's nodes there are only the slices of what is read narrower than computed.
    assert COSTS.block_s(found) == pytest.approx(COSTS.block_s(planned), rel=0.06)


@pytest.mark.parametrize(
    ("inputs", "whole", "wanted"),
    [
        ({"x": (1, 8, 5, 14)}, {"x": (1, 8, 14, 14)}, {"x": (1, 8, 14, 14)}),
        ({"x": (1, 8, 5, 4)}, {"x": (1, 8, 14, 10)}, {"x": (1, 8, 14, 10)}),
        # A halo of two rows stays one.
        (
            {"a": (1, 8, 5, 14), "b": (1, 8, 7, 14)},
            {"a": (1, 8, 14, 14), "b": (1, 8, 14, 14)},
            {"a": (1, 8, 12, 14), "b": (1, 8, 14, 14)},
        ),
        # Of maps of different strides, each by its own part.
        (
            {"a": (1, 8, 4, 28), "b": (1, 8, 10, 56)},
            {"a": (1, 8, 28, 28), "b": (1, 8, 56, 56)},
            {"a": (1, 8, 27, 28), "b": (1, 8, 56, 56)},
        ),
        # What is whole stays as it is.
        (
            {"q": (1, 50, 64), "k": (1, 196, 64)},
            {"q": (1, 196, 64), "k": (1, 196, 64)},
            {"q": (1, 196, 64), "k": (1, 196, 64)},
        ),
        ({}, {}, {}),
    ],
)
def test_a_tile_grows_by_the_same_part_of_every_map(inputs, whole, wanted):
    assert grown(inputs, whole) == wanted


@pytest.fixture
def engine(tmp_path):
    return EmulatedRuntime(Place(tmp_path / "engine", BlobStore(tmp_path, 1 << 30), 1), COSTS)


def tile_run(engine, piece):
    """A run of a piece whose weights are made up."""
    weights = {ref.name: np.zeros(ref.dims, np.float32) for ref in piece.program.weights}
    session = engine.trial(piece.program, weights, 1)
    feeds = {name: np.ones(box.shape, np.float32) for name, box in piece.inputs.items()}
    return session.bound(feeds, {})


def test_the_whole_map_of_a_tile_is_the_networks(network, engine, tmp_path):
    write_maps(tmp_path / "turns", "any", maps_of(network.graph))
    piece, _ = piece_of(network, 21, 30, range(4, 9))
    tile = tile_run(engine, piece)
    found = WholeMaps(tmp_path / "turns").of(tile)
    ((name, box),) = piece.inputs.items()
    assert box.shape[2] < 14
    assert found.shapes == {name: (*box.shape[:2], 14, 14)}
    assert found.kernels != tile.kernels
    assert found.run(tile).kernels == found.kernels
    assert found.seconds == COSTS.block_s(works_of(piece.program, found.shapes))


def test_a_map_of_which_nobody_has_told_is_as_high_as_it_is_wide(network, engine):
    piece, _ = piece_of(network, 21, 30, range(4, 9))
    ((name, box),) = piece.inputs.items()
    found = WholeMaps(None).of(tile_run(engine, piece))
    assert found.shapes == {name: (*box.shape[:2], 14, 14)}


def test_maps_that_a_tile_does_not_fit_into_are_those_of_another_network(engine, tmp_path, network):
    piece, _ = piece_of(network, 21, 30, range(4, 9))
    ((name, box),) = piece.inputs.items()
    for number, shape in enumerate(([1, *box.shape[1:2], 40, 14], [1, 3, 40, 40], [1, 40])):
        (tmp_path / f"{number}.maps.json").write_text(json.dumps({name: shape}))
    found = WholeMaps(tmp_path).of(tile_run(engine, piece))
    assert found.shapes == {name: (1, box.shape[1], 40, 14)}


def test_a_whole_network_is_its_own_whole_map(engine):
    program, _ = conv_program()
    graph = network_of(load("lenet5")).graph
    everything = {name: Box.whole(graph.shape(name)) for name in graph.results}
    piece = cut(graph, graph.nodes, everything, BlobSource(), static=True)
    tile = tile_run(engine, piece)
    found = WholeMaps(None).of(tile)
    assert found.kernels == tile.kernels
    assert any_rows(program).weights == program.weights


@pytest.mark.parametrize("kind", sorted(DRAWS))
def test_every_sample_of_a_profile_is_charged_by_its_work(engine, kind):
    sample = draw(kind, random.Random(1), 2e6)
    weights = {ref.name: np.zeros(ref.dims, np.float32) for ref in sample.what.program.weights}
    session = engine.trial(sample.what.program, weights, 1)
    feeds = {each.tensor: np.ones(each.dims, np.float32) for each in sample.what.inputs}
    tile = session.bound(feeds, {})
    tile.compute()
    own = works_of(tile.program, {name: array.shape for name, array in feeds.items()})
    # A resized map is cropped, which a program does by a node of its own.
    most = 2.5 if kind == "resize" else 1.000001
    assert 0.999999 <= COSTS.block_s(own) / COSTS.block_s(sample.what.works) <= most
    found = WholeMaps(None).of(tile)
    assert found.seconds >= COSTS.block_s(own)


class _Timed(Runnable):
    """A session whose runs take as long on the clock as their first input has rows, and more."""

    def __init__(self, session, clock, seconds):
        super().__init__(session.inputs, session.outputs)
        self.session, self.clock, self.seconds = session, clock, seconds

    def _bind(self, inputs, shapes):
        ready = self.session.bound(inputs, shapes)
        (array,) = inputs.values()
        taken = self.seconds(array.shape[2])
        return replace(ready, compute=lambda: self.clock.work(taken, taken))


def test_a_tile_is_charged_its_share_of_the_preset_times_what_it_loses(
    monkeypatch, network, engine
):
    clock = FakeClock()
    monkeypatch.setattr(throttles, "reference", lambda: lambda: clock.work(1e-6, 1e-6))
    rates = DeviceRates(gflops=1.0, rate_1x1=0.5, rate_depthwise=0.1, map_byte_ns=0.5)
    emulation = Emulation(reference_s=1e-6, weight_ns=2.0, rates=rates)
    throttle = EmulatedThrottle(1e-5, emulation, clock)
    costs = COSTS

    def charged(rows, seconds):
        piece, _ = piece_of(network, 21, 30, rows)
        tile = tile_run(engine, piece)
        session = _Timed(tile.session, clock, seconds)
        run = replace(tile, session=session, compute=session.bound(tile.inputs, {}).compute)
        timed = throttle.run(run)
        reading_s = tile.weight_bytes * 2e-9
        return timed.stop_s - timed.start_s - reading_s, tile

    # Twice as long per row than on the whole map, and a tenth of this processor's time or all of
    # it: the preset alone says how long the whole map takes.
    for times in (1e-4, 1e-3):
        seconds, tile = charged(range(4, 9), lambda r, k=times: k * r * (2 if r < 14 else 1))
        ((name, array),) = tile.inputs.items()
        shape = array.shape
        whole_s = costs.block_s(works_of(tile.program, {name: (*shape[:2], 14, 14)}))
        assert seconds == pytest.approx(whole_s * 2 * shape[2] / 14, rel=1e-6)
    seconds, tile = charged(range(0, 14), lambda r: 0.01)
    works = works_of(tile.program, {name: array.shape for name, array in tile.inputs.items()})
    assert seconds == pytest.approx(costs.block_s(works), rel=1e-6)


def test_run_not_known_to_be_a_tile_is_charged_at_the_pace():
    clock = FakeClock()
    throttle = EmulatedThrottle(0.5, Emulation(rates=DeviceRates(gflops=1.0)), clock)
    timed = throttle.run(Ready(lambda: clock.work(1.0, 1.0)))
    assert timed.stop_s - timed.start_s == pytest.approx(2.0)


def test_a_program_comes_back_after_a_restart(tmp_path):
    store = BlobStore(tmp_path, 1 << 30)
    engine = EmulatedRuntime(Place(tmp_path / "engine", store, 1), COSTS)
    program, blobs = conv_program()
    for ref in program.weights:
        data = bytes(blobs.bytes_of(ref.sha256))
        store.append(ref.sha256, 0, len(data), data)
        store.complete(ref.sha256, len(data))
    assert not engine.is_prepared(program.sha256)
    engine.prepare(program)
    assert engine.is_prepared(program.sha256)
    run = engine.load(program.sha256).bound({"x": picture()}, {})
    assert (run.program, run.inputs.keys()) == (program, {"x"})
    again = EmulatedRuntime(Place(tmp_path / "engine", store, 1), COSTS)
    assert not again.is_prepared(program.sha256)
    assert again.load(program.sha256) is None


class _Slow(Runnable):
    """Another engine's program."""

    def __init__(self, session):
        super().__init__(session.inputs, session.outputs)
        self.session = session

    def _bind(self, inputs, shapes):
        return replace(self.session.bound(inputs, shapes), kernels=(), weight_bytes=0)


class _Other(OnnxRuntime):
    """Another engine, which takes no program of two inputs."""

    def trial(self, program, weights, threads):
        session = super().trial(program, weights, threads)
        if len(session.inputs) > 1:
            raise BadInput(cause="it has two inputs", cure="Use onnxruntime")
        return _Slow(session)


@pytest.fixture
def two_engines(monkeypatch, tmp_path):
    """onnxruntime and another engine, which is twice as fast."""
    monkeypatch.setattr(runtimes, "factory_of", lambda name: {"other": _Other}[name])
    costs = RateCosts(1.0, others=(RateCosts(2.0, engine="other"),))
    return EmulatedRuntime(Place(tmp_path / "engine", BlobStore(tmp_path, 1 << 30), 1), costs)


@pytest.mark.parametrize(("other_times", "chosen"), [(1.5, "other"), (3.0, "onnxruntime")])
def test_a_program_is_computed_by_the_engine_that_is_charged_least(
    monkeypatch, network, two_engines, other_times, chosen
):
    """By its preset the other one is twice as fast; of tiles it loses `other_times` as much."""
    clock = FakeClock()
    monkeypatch.setattr(throttles, "reference", lambda: lambda: clock.work(1e-6, 1e-6))
    rates = DeviceRates(gflops=1.0, engine=(OtherEngine(name="other", gflops=2.0),))
    throttle = EmulatedThrottle(1e-5, Emulation(reference_s=1e-6, rates=rates), clock)
    piece, _ = piece_of(network, 21, 30, range(4, 9))
    tile = tile_run(two_engines, piece)
    (make_other,) = tile.others

    def timed(run, times):
        session = _Timed(run.session, clock, lambda rows: 1e-4 * rows * (times if rows < 14 else 1))
        return replace(run, session=session, compute=session.bound(run.inputs, {}).compute)

    run = replace(timed(tile, 1.0), others=[lambda: timed(make_other(), other_times)])
    for _ in range(2):
        result = throttle.run(run)
    (rows,) = {array.shape[2] for array in tile.inputs.values()}
    shapes = {name: (*array.shape[:2], 14, 14) for name, array in tile.inputs.items()}
    works = works_of(tile.program, shapes)
    seconds = {
        "onnxruntime": tile.costs.program_s(works) * rows / 14,
        "other": make_other().costs.program_s(works) * rows / 14 * other_times,
    }
    assert min(seconds, key=seconds.get) == chosen
    assert result.stop_s - result.start_s == pytest.approx(seconds[chosen], rel=1e-6)


def test_whole_maps_of_every_engine_are_told_apart_and_measured_once(network, two_engines):
    piece, _ = piece_of(network, 21, 30, range(4, 9))
    tile = tile_run(two_engines, piece)
    (make_other,) = tile.others
    wholes = [WholeMaps(None).of(run).run(run).kernels for run in (tile, make_other())]
    assert () not in wholes
    assert wholes[0] != wholes[1]


def test_engines_are_tried_one_by_one(two_engines):
    sample = draw("depthwise", random.Random(3), 2e6)
    weights = {ref.name: np.zeros(ref.dims, np.float32) for ref in sample.what.program.weights}
    feeds = {each.tensor: np.ones(each.dims, np.float32) for each in sample.what.inputs}
    runs = {
        name: trial(sample.what.program, weights, 1).bound(feeds, {})
        for name, trial in two_engines.trials.items()
    }
    assert {name: run.costs.engine for name, run in runs.items()} == {
        "onnxruntime": "onnxruntime",
        "other": "other",
    }
    assert len({run.kernels for run in runs.values()} - {()}) == 2
    # Samples have weights without a hash: reading each is charged, by whichever engine.
    (size,) = {run.weight_bytes for run in runs.values()}
    assert size == sum(array.nbytes for array in weights.values()) > 0
    assert not any(run.others for run in runs.values())


def test_run_that_the_other_engine_refuses_is_charged_as_by_onnxruntime(two_engines):
    samples = (draw("concat", random.Random(seed), 2e6) for seed in range(100))
    sample = next(sample for sample in samples if len(sample.what.inputs) > 1)
    feeds = {each.tensor: np.ones(each.dims, np.float32) for each in sample.what.inputs}
    run = two_engines.trial(sample.what.program, {}, 1).bound(feeds, {})
    assert run.costs.engine == "onnxruntime"
    assert not run.others
