import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.program import BlobSource, Program, WeightRef
from protos.errors import BadRequest, ImbrexError, Unavailable
from protos.failures import BadInput, NoProgram, OutOfMemory
from tests.serving.processes import wait
from tests.worker.support import conv_program, picture, whole
from worker.engines.base import Place
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.ort_session import BLOCKED_LAYOUT, cores_of_pool
from worker.programs.store import BlobStore
from worker.sessions import Sessions


class Room:
    """A store, its optimised programs and sessions, as one daemon has them."""

    def __init__(
        self,
        directory,
        cap_bytes=1 << 20,
        disk_bytes=1 << 20,
        as_on_arm=False,
        memory_bytes=1 << 40,
    ):
        self.store = BlobStore(directory, disk_bytes)
        place = Place(directory / "optimised", self.store, 1, memory_bytes)
        self.engine = OnnxRuntime(place, (BLOCKED_LAYOUT,) if as_on_arm else ())
        self.sessions = Sessions(self.engine, self.store, cap_bytes)
        self.store.in_use = self.sessions.blobs_in_use

    def install(self, program, blobs):
        for sha256 in self.sessions.missing([program]):
            data = bytes(blobs.bytes_of(sha256))
            self.store.append(sha256, 0, len(data), data)
            self.store.complete(sha256, len(data))
        self.sessions.prepare(program)


@pytest.fixture
def room(tmp_path):
    return Room(tmp_path)


def run(room, program, x, rows, columns):
    session = room.sessions.get(program.sha256)
    return session.bound({"x": x}, {"y": (1, 16, rows, columns)}).compute()["y"]


def weights_of(program, blobs):
    return {
        ref.name: np.frombuffer(blobs.bytes_of(ref.sha256), np.float32).reshape(ref.dims)
        for ref in program.weights
    }


@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 1, 1, 1), (0, 0, 0, 0)])
def test_a_session_gives_what_the_whole_model_gives_at_any_size(room, pads):
    program, blobs = conv_program(pads=pads)
    room.install(program, blobs)
    for rows, columns in ((12, 10), (7, 31)):
        x = picture(rows, columns)
        rows_out = rows + pads[0] + pads[2] - 2
        columns_out = columns + pads[1] + pads[3] - 2
        y = run(room, program, x, rows_out, columns_out)
        assert np.abs(y - whole(x, pads=pads)).max() <= 1e-5 * np.abs(y).max()
        assert y.ctypes.data % 64 == 0


def test_a_trial_computes_with_the_weights_it_is_given(room):
    program, blobs = conv_program()
    trial = room.engine.trial(program, weights_of(program, blobs), 1)
    y = trial.bound({"x": picture()}, {"y": (1, 16, 12, 10)}).compute()["y"]
    assert np.abs(y - whole(picture())).max() <= 1e-5 * np.abs(y).max()


def cores_of(threads):
    return sorted(sorted(os.sched_getaffinity(int(each))) for each in threads)


def test_the_threads_of_a_pool_have_cores_of_their_own(room):
    program, blobs = conv_program()
    usable = sorted(os.sched_getaffinity(0))
    before = set(os.listdir("/proc/self/task"))
    trial = room.engine.trial(program, weights_of(program, blobs), len(usable))
    pool = set(os.listdir("/proc/self/task")) - before
    # Each pins itself when it begins, which may be after the session is made.
    wait(lambda: cores_of(pool) == [[core] for core in usable[1:]])
    del trial


def test_where_cores_are_left_over_the_system_places_threads(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 0, 2})
    assert cores_of_pool(3) == [2, 5]
    assert cores_of_pool(2) == cores_of_pool(1) == cores_of_pool(4) == []


@pytest.mark.parametrize("as_on_arm", [True, False])
def test_as_on_arm_no_graph_is_in_the_blocked_layout_and_answers_are_the_same(tmp_path, as_on_arm):
    program, blobs = conv_program()
    room = Room(tmp_path, as_on_arm=as_on_arm)
    room.install(program, blobs)
    (file,) = (tmp_path / "optimised").glob("*.onnx")
    domains = {node.domain for node in onnx.load(file, load_external_data=False).graph.node}
    blocked = platform.machine() == "x86_64" and not as_on_arm
    assert ("com.microsoft.nchwc" in domains) is blocked
    x = picture()
    y = run(room, program, x, 12, 10)
    assert np.abs(y - whole(x)).max() <= 1e-5 * np.abs(y).max()


def test_what_a_new_device_says_of_itself_follows_its_clock_and_cores(tmp_path, monkeypatch):
    engine = Room(tmp_path).engine
    one = engine.gflops(1, 1000)
    assert engine.gflops(1, 1400) > one
    assert one < engine.gflops(2, 1000) < 2 * one
    assert engine.gflops(1, 0) == one, "an unknown frequency"
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    arm = engine.gflops(1, 1000)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert engine.gflops(1, 1000) > arm


def test_emulating_arm_means_building_again(tmp_path):
    program, blobs = conv_program()
    Room(tmp_path).install(program, blobs)
    assert not Room(tmp_path, as_on_arm=True).engine.is_prepared(program.sha256)


def test_border_classes_of_one_block_share_their_weights(room):
    blobs = None
    for pads in ((1, 1, 1, 1), (0, 1, 1, 1), (1, 1, 0, 1), (0, 1, 0, 1)):
        program, blobs = conv_program(blobs, pads=pads)
        room.install(program, blobs)
    # The convolution's re-laid weights; the bias is small and stays in the graph.
    assert room.sessions.weight_bytes == 16 * 16 * 9 * 4
    assert len(room.sessions.blobs_in_use()) == 1


def test_a_restart_uses_the_optimised_form_and_needs_no_weights(tmp_path, monkeypatch):
    program, blobs = conv_program()
    first = Room(tmp_path)
    first.install(program, blobs)
    again = Room(tmp_path)
    # On x86-64 kernels want them in another order, on Arm as they are.
    for sha256 in {ref.sha256 for ref in program.weights} - set(first.sessions.blobs_in_use()):
        again.store.path(sha256).unlink()
    monkeypatch.setattr(OnnxRuntime, "prepare", None)
    assert again.sessions.missing([program]) == []
    again.sessions.prepare(program)
    x = picture()
    assert np.allclose(run(again, program, x, 12, 10), whole(x), atol=1e-5)


def test_another_processor_or_a_lost_blob_means_building_again(tmp_path, monkeypatch):
    program, blobs = conv_program()
    room = Room(tmp_path)
    room.install(program, blobs)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("worker.engines.onnxruntime.cpu_fingerprint", lambda: "another")
        assert not Room(tmp_path).engine.is_prepared(program.sha256)
    (relaid,) = room.sessions.blobs_in_use()
    room.store.path(relaid).unlink()
    again = Room(tmp_path)
    assert not again.engine.is_prepared(program.sha256)
    again.install(program, blobs)
    assert again.engine.is_prepared(program.sha256)


def test_a_kept_graph_that_is_damaged_is_built_again(tmp_path):
    program, blobs = conv_program()
    Room(tmp_path).install(program, blobs)
    (kept,) = (tmp_path / "optimised").glob("*.onnx")
    kept.write_bytes(b"\xff" + kept.read_bytes())
    again = Room(tmp_path)
    again.install(program, blobs)
    x = picture()
    assert np.allclose(run(again, program, x, 12, 10), whole(x), atol=1e-5)


def test_the_least_recently_used_session_goes_and_comes_back_by_itself(tmp_path):
    room = Room(tmp_path, cap_bytes=2 * 16 * 16 * 9 * 4)
    programs = []
    for seed in range(3):
        program, blobs = conv_program(seed=seed)
        room.install(program, blobs)
        programs.append(program)
    assert len(room.sessions.blobs_in_use()) == 2
    x = picture()
    assert np.allclose(run(room, programs[0], x, 12, 10), whole(x, seed=0), atol=1e-5)
    assert len(room.sessions.blobs_in_use()) == 2


def test_weights_beyond_the_cap_are_out_of_memory(tmp_path):
    room = Room(tmp_path, cap_bytes=1000)
    program, blobs = conv_program()
    with pytest.raises(OutOfMemory, match="exceed"):
        room.install(program, blobs)
    assert room.sessions.weight_bytes == 0


def test_a_disk_cap_below_the_weights_is_told(tmp_path):
    room = Room(tmp_path, disk_bytes=12_000)
    program, blobs = conv_program()
    with pytest.raises(Unavailable, match="Raise disk_mb"):
        room.install(program, blobs)


def test_programs_that_are_not_retained_or_were_never_prepared_are_unknown(room):
    program, blobs = conv_program()
    with pytest.raises(NoProgram):
        room.sessions.get(program.sha256)
    room.install(program, blobs)
    room.sessions.retain([program.sha256])
    room.sessions.get(program.sha256)
    room.sessions.retain([])
    with pytest.raises(NoProgram):
        room.sessions.get(program.sha256)
    assert room.sessions.weight_bytes == 0


def test_a_program_stays_as_long_as_one_coordinator_uses_it(room):
    program, blobs = conv_program()
    room.install(program, blobs)
    for coordinator in ("hall", "attic"):
        room.sessions.prepare(program, coordinator)
    for coordinator in ("", "hall", "stranger"):
        room.sessions.retain([], coordinator)
        room.sessions.get(program.sha256)
    room.sessions.retain([], "attic")
    with pytest.raises(NoProgram):
        room.sessions.get(program.sha256)


def test_a_weight_of_another_size_than_its_blob_is_refused(room):
    program, blobs = conv_program()
    wrong, _ = conv_program()
    refs = tuple(
        type(ref)(ref.name, ref.sha256, ref.data_type, (*ref.dims, 2)) for ref in wrong.weights
    )
    with pytest.raises(BadRequest, match=r"needs .* bytes, but its blob has"):
        room.install(type(program)(program.graph, refs), blobs)


def test_shapes_and_names_that_do_not_fit_are_bad_input(room):
    program, blobs = conv_program()
    room.install(program, blobs)
    session = room.sessions.get(program.sha256)
    x = picture()
    for inputs, shapes in (
        ({"x": x}, {"y": (1, 16, 11, 10)}),
        ({"x": x[:, :8].copy()}, {"y": (1, 16, 12, 10)}),
        ({"x": x.astype(np.float64)}, {"y": (1, 16, 12, 10)}),
        ({"x": x}, {"z": (1, 16, 12, 10)}),
        ({"q": x}, {"y": (1, 16, 12, 10)}),
    ):
        with pytest.raises(BadInput):
            session.bound(inputs, shapes).compute()
    assert session.bound({"x": x}, {"y": (1, 16, 12, 10)}).compute()


def dense_program(megabytes=8, rows=8, images=1):
    """`x` (images, rows) -> a fully connected layer with its activation -> `y`."""
    columns = megabytes * 1_000_000 // 4 // rows
    random = np.random.default_rng(3)
    arrays = {
        "w": random.standard_normal((rows, columns)).astype(np.float32),
        "b": random.standard_normal(columns).astype(np.float32)[:columns],
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["z"]),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [images, size])
        for name, size in (("x", rows), ("y", columns))
    ]
    graph = helper.make_graph(nodes, "dense", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    blobs = BlobSource()
    refs = tuple(
        WeightRef(name, blobs.add(array), TensorProto.FLOAT, array.shape)
        for name, array in arrays.items()
    )
    return Program(model.SerializeToString(), refs), blobs, arrays


def test_the_largest_matrices_are_mapped_as_they_were_sent(tmp_path):
    program, blobs, arrays = dense_program(33)
    room = Room(tmp_path, cap_bytes=40_000_000, disk_bytes=80_000_000)
    room.install(program, blobs)
    sent = {ref.sha256 for ref in program.weights}
    session = room.sessions.get(program.sha256)
    assert program.weights[0].sha256 in session.blobs
    assert {file.name for file in room.store.blobs.iterdir()} == sent, "nothing is kept twice"
    x = np.linspace(-1, 1, 8, dtype=np.float32)[None]
    y = session.bound({"x": x}, {"y": (1, arrays["w"].shape[1])}).compute()["y"]
    expected = np.maximum(x @ arrays["w"] + arrays["b"], 0)
    assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max()
    again = Room(tmp_path, cap_bytes=40_000_000, disk_bytes=80_000_000)
    assert again.sessions.missing([program]) == []
    again.sessions.prepare(program)
    assert again.sessions.weight_bytes == room.sessions.weight_bytes > 33_000_000


def test_a_matrix_is_packed_once_and_sessions_map_it(tmp_path):
    program, blobs, arrays = dense_program(rows=512, images=32)
    room = Room(tmp_path, cap_bytes=20_000_000, disk_bytes=40_000_000)
    room.install(program, blobs)
    x = np.random.default_rng(0).standard_normal((32, 512)).astype(np.float32)
    shapes = {"y": (32, arrays["w"].shape[1])}
    y = room.sessions.get(program.sha256).bound({"x": x}, shapes).compute()["y"]
    expected = np.maximum(x @ arrays["w"] + arrays["b"], 0)
    assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max()
    assert 8_000_000 < room.sessions.weight_bytes < 9_000_000, "runs read the packed form only"
    before = anonymous_bytes()
    several = [room.engine.load(program.sha256) for _ in range(4)]
    assert anonymous_bytes() - before < 4_000_000, "none has a copy of its own"
    del several


def test_a_packed_weight_that_is_damaged_on_disk_is_packed_again(tmp_path):
    program, blobs, _ = dense_program(rows=512, images=32)
    room = Room(tmp_path, cap_bytes=20_000_000, disk_bytes=40_000_000)
    room.install(program, blobs)
    sent = {ref.sha256 for ref in program.weights}
    (kept,) = [file for file in room.store.blobs.iterdir() if file.name not in sent]
    sound = kept.read_bytes()
    kept.write_bytes(sound[:-1_000_000] + bytes(1_000_000))
    again = Room(tmp_path, cap_bytes=20_000_000, disk_bytes=40_000_000)
    again.install(program, blobs)
    assert again.sessions.weight_bytes == room.sessions.weight_bytes
    assert kept.read_bytes() == sound


@pytest.mark.parametrize(("free_mb", "memory_mb"), [(20, 1000), (1000, 31)])
def test_what_is_too_large_for_the_memory_is_not_packed(tmp_path, monkeypatch, free_mb, memory_mb):
    monkeypatch.setattr("worker.engines.packed.free_bytes", lambda: free_mb * 1_000_000)
    program, blobs, _ = dense_program()
    room = Room(tmp_path, 20_000_000, 40_000_000, memory_bytes=memory_mb * 1_000_000)
    room.install(program, blobs)
    sent = {ref.sha256 for ref in program.weights}
    assert {file.name for file in room.store.blobs.iterdir()} == sent


def anonymous_bytes():
    """This process's memory that no file backs."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such line")


def test_a_large_matrix_takes_no_memory_to_prepare(tmp_path, monkeypatch):
    for module in ("onnxruntime", "packed"):
        monkeypatch.setattr(f"worker.engines.{module}.free_bytes", lambda: 4_000_000)
    program, blobs, _ = dense_program()
    room = Room(tmp_path, cap_bytes=20_000_000, disk_bytes=40_000_000)
    room.install(program, blobs)
    program, blobs = conv_program()
    monkeypatch.setattr("worker.engines.onnxruntime.free_bytes", lambda: 20_000)
    with pytest.raises(OutOfMemory, match="weights to lay out"):
        room.install(program, blobs)


def test_a_matrix_whose_blob_has_another_size_is_refused(tmp_path):
    program, blobs, _ = dense_program()
    w, b = program.weights
    longer = replace(w, dims=(w.dims[0] + 1, w.dims[1]))
    room = Room(tmp_path, cap_bytes=20_000_000, disk_bytes=40_000_000)
    with pytest.raises(BadRequest, match="but its blob has"):
        room.install(Program(program.graph, (longer, b)), blobs)


def test_a_program_that_lists_its_matrix_as_an_input_is_refused(tmp_path):
    program, blobs, arrays = dense_program()
    model = onnx.ModelProto.FromString(program.graph)
    shape = arrays["w"].shape
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, shape))
    room = Room(tmp_path, cap_bytes=20_000_000, disk_bytes=40_000_000)
    with pytest.raises(ImbrexError):
        room.install(Program(model.SerializeToString(), program.weights), blobs)


def test_programs_of_other_sizes_use_the_same_memory():
    """In a process of its own: the arena of this one has grown for other tests."""
    subprocess.run([sys.executable, "-m", "tests.worker.arena"], check=True)
