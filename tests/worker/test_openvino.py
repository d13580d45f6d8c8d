"""OpenVINO: the same results as onnxruntime, and what it can't take, cache or keep."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.check.tolerance import of_engine
from models.tensors.precision import write_precision
from protos.errors import BadConfiguration
from tests.worker.support import conv_program, picture, whole
from worker.engines.base import Place
from worker.engines.registry import factory_of
from worker.programs.store import BlobStore

pytest.importorskip("openvino", reason="needs the extra openvino")


def engine(folder, threads=1, name="openvino"):
    return factory_of(name)(Place(folder / "programs", BlobStore(folder, 1 << 30), threads))


def given(engine, folder, **options):
    """A program that was prepared, with its weights in the store."""
    program, blobs = conv_program(**options)
    for ref in program.weights:
        (folder / "blobs" / ref.sha256).write_bytes(blobs.bytes_of(ref.sha256))
    engine.prepare(program)
    return engine.load(program.sha256)


def assert_right(runnable, x):
    y = runnable.bound({"x": x}, {"y": x.shape}).compute()["y"]
    assert y.ctypes.data % 64 == 0
    assert np.abs(y - whole(x)).max() <= 1e-6 * np.abs(y).max()


def cached(folder):
    return sorted((folder / "programs" / "openvino").glob("*"))


@pytest.mark.parametrize("threads", [1, 2])
def test_programs_of_all_shapes_are_computed_as_by_onnxruntime(tmp_path, threads):
    loaded = given(engine(tmp_path, threads), tmp_path)
    for rows, columns in ((12, 10), (7, 33), (12, 10)):
        x = picture(rows, columns)
        x.setflags(write=False)  # as what arrives in a message
        assert_right(loaded, x)


def test_runs_that_are_set_up_at_the_same_time_do_not_disturb_each_other(tmp_path):
    loaded = given(engine(tmp_path), tmp_path)
    xs = [picture(seed=seed) for seed in range(3)]
    runs = [loaded.bound({"x": x}, {"y": x.shape}) for x in xs]
    results = [run.compute()["y"] for run in runs]
    for x, y in zip(xs, results, strict=True):
        assert np.abs(y - whole(x)).max() <= 1e-6 * np.abs(y).max()
        assert np.abs(y - whole(xs[0])).max() > 1e-3 or x is xs[0]


def test_results_of_a_run_stay_though_a_later_one_does_not_want_them(tmp_path):
    loaded = given(engine(tmp_path), tmp_path)
    first, second = (picture(seed=seed) for seed in range(2))
    y = loaded.bound({"x": first}, {"y": first.shape}).compute()["y"]
    loaded.bound({"x": second}, {"y": None}).compute()
    assert np.abs(y - whole(first)).max() <= 1e-6 * np.abs(y).max()


def test_precision_of_openvino_is_f32(tmp_path):
    compiled = _made(tmp_path)
    assert compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name() == "f32"
    assert compiled.get_property("NUM_STREAMS") == 1


def _made(folder):
    loaded = given(engine(folder), folder)
    assert_right(loaded, picture())
    (compiled,) = loaded._made.values()
    return compiled


def test_a_model_may_allow_half_precision(tmp_path):
    made = engine(tmp_path)
    program, blobs = conv_program()
    for ref in program.weights:
        (tmp_path / "blobs" / ref.sha256).write_bytes(blobs.bytes_of(ref.sha256))
    model = onnx.ModelProto.FromString(program.graph)
    write_precision(model, "fp16")
    program = replace(program, graph=model.SerializeToString())
    made.prepare(program)
    loaded = made.load(program.sha256)
    x = picture()
    y = loaded.bound({"x": x}, {"y": x.shape}).compute()["y"]
    assert np.abs(y - whole(x)).max() <= of_engine("fp16") * np.abs(y).max()
    (compiled,) = loaded._made.values()
    hint = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    # Processors with neither of the others go on in f32.
    assert hint in ("f16", "bf16", "f32")


def test_a_damaged_cache_is_not_believed(tmp_path):
    assert_right(given(engine(tmp_path), tmp_path), picture())
    assert cached(tmp_path)
    for file in cached(tmp_path):
        file.write_bytes(b"not what was compiled")
    assert_right(given(engine(tmp_path), tmp_path), picture())


def test_a_cache_that_cannot_be_written_is_gone_without(tmp_path):
    made = engine(tmp_path)
    (tmp_path / "programs" / "openvino").write_text("no folder")
    assert_right(given(made, tmp_path), picture())


def test_a_full_disk_is_gone_without(tmp_path):
    made, cache = engine(tmp_path), tmp_path / "programs" / "openvino"
    cache.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(cache)]
    if os.geteuid() or subprocess.run(mounted, check=False, capture_output=True).returncode:
        pytest.skip("needs root, to mount a small disk")
    try:
        assert_right(given(made, tmp_path), picture())
    finally:
        subprocess.run(["umount", str(cache)], check=True)


def test_the_cache_has_a_cap(tmp_path, monkeypatch):
    monkeypatch.setattr("worker.engines.openvino.CACHE_BYTES", 40_000)
    loaded = given(engine(tmp_path), tmp_path)
    for rows in range(8, 16):
        assert_right(loaded, picture(rows))
        assert sum(file.stat().st_size for file in cached(tmp_path)) <= 40_000


def test_openvino_leaves_nothing_beside_the_cache(tmp_path):
    made = engine(tmp_path)
    given(made, tmp_path)
    assert [path.name for path in Path(made._place.folder).glob(".*")] == []


def test_a_device_that_it_does_not_have_is_named_with_those_that_it_has(tmp_path):
    with pytest.raises(BadConfiguration, match=r"no device 'NPU\.7'") as raised:
        engine(tmp_path, name="openvino:NPU.7")
    assert "CPU" in raised.value.cure
