"""Every tile of whole networks by ncnn: the answer is onnxruntime's of the whole network."""

import pytest

from benchmarks.exports.files import FOLDER
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of
from models.check.check import fused
from models.cut.program import BlobSource
from models.cut.tiles import grid
from models.run import run_tiles
from models.run.reference import (
    ProgramRunner,
    WholeModel,
    compare,
    picture_inputs,
    random_inputs,
)
from models.vision.pixels import as_values
from protos.failures import BadInput
from tests.worker.support import weights_of
from worker.engines.base import Place
from worker.engines.registry import factory_of
from worker.programs.store import BlobStore

pytest.importorskip("ncnn", reason="needs the extra ncnn")

GRIDS = ((1, 1), (2, 2), (3, 2), (4, 1))
SLOW = (
    *("digits", "alexnet", "vgg16", "vgg16-conv", "googlenet", "inceptionv3", "resnet18"),
    *("resnet50", "densenet121", "squeezenet", "mobilenetv2", "mobilenetv3", "shufflenetv2"),
    *("efficientnet-lite0", "convnext-tiny", "unet", "deeplabv3", "yolov2", "yolov3-tiny"),
    *("yolov8n", "lenet5"),
)
EXPORT = FOLDER / "yolo11n.onnx"
# What ncnn leaves to onnxruntime, as workers do: of all other networks, nothing.
REFUSED = {"alexnet": "matrix", "vgg16": "matrix", "deeplabv3": "Gather"}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Tiles are run by ncnn: the programs that were, and why others were not."""
    engine = factory_of("ncnn")(Place(tmp_path, BlobStore(tmp_path, 1 << 30), 1))
    ran, refused = [], set()

    class ByNcnn(ProgramRunner):
        def run(self, program, feeds, outputs):
            expected = super().run(program, feeds, outputs)
            shapes = {name: a.shape for name, a in zip(outputs, expected, strict=True)}
            translated = engine.trial(program, weights_of(program, self._blobs), 1)
            try:
                ready = translated.bound(feeds, shapes)
            except BadInput as error:
                refused.add(error.cause)
                return expected
            results = ready.compute()
            ran.append(program.sha256)
            return [results[name] for name in outputs]

    monkeypatch.setattr(run_tiles, "ProgramRunner", ByNcnn)
    return ran, refused


def assert_exact(name, seeds, runs):
    assert largest_error(name, seeds) <= 1e-5
    ran, refused = runs
    assert ran
    assert bool(refused) == (name in REFUSED)
    assert all(REFUSED[name] in cause for cause in refused)


def largest_error(name, seeds):
    loaded = load(name)
    network, whole, error = network_of(loaded), WholeModel(loaded.proto), 0.0
    units = [(start, start + 1) for start in range(len(network.units))]
    for seed in seeds:
        for feeds in (random_inputs(network.graph, seed), picture_inputs(network.graph, seed)):
            expected = whole.run(as_values(network.graph, feeds))
            for shape in GRIDS:
                for blocking in (units, fused(network)):
                    run = run_tiles.TileRun(network, BlobSource(), feeds)
                    for start, stop in blocking:
                        run.block(start, stop, grid(network, start, stop, *shape))
                    error = max(error, compare(run.answer(), expected).max_rel_error)
    return error


@pytest.mark.parametrize("name", ["digits", "lenet5"])
def test_all_tiles_of_a_network_are_exact(runs, name):
    assert_exact(name, range(1), runs)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_all_tiles_of_a_large_network_are_exact(runs, name):
    assert_exact(name, range(10), runs)


@pytest.mark.slow
@pytest.mark.skipif(not EXPORT.exists(), reason="`benchmarks.exports` has not exported it")
def test_all_tiles_of_an_exported_network_are_exact(runs):
    assert_exact(str(EXPORT), range(10), runs)
