import os
import platform
import subprocess
import sys

import numpy as np
import onnx
import pytest

from protos.errors import BadRequest, Unavailable
from protos.failures import BadInput, NoProgram, OutOfMemory
from tests.serving.processes import wait
from tests.worker.room import Room
from tests.worker.support import conv_program, picture, whole
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.ort_session import cores_of_pool


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


def test_threads_are_placed_by_the_system_where_cores_are_left_over(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 0, 2})
    assert cores_of_pool(3) == [2, 5]
    assert cores_of_pool(2) == cores_of_pool(1) == cores_of_pool(4) == []


@pytest.mark.parametrize("as_on_arm", [True, False])
def test_graphs_as_on_arm_avoid_the_blocked_layout_and_answer_the_same(tmp_path, as_on_arm):
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


def test_first_estimate_follows_clock_and_cores(tmp_path, monkeypatch):
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


def test_new_processor_or_lost_blob_means_building_again(tmp_path, monkeypatch):
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


def test_programs_of_other_sizes_use_the_same_memory():
    """In a process of its own: the arena of this one has grown for other tests."""
    subprocess.run([sys.executable, "-m", "tests.worker.arena"], check=True)
