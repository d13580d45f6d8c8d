"""Large matrices: packed once, mapped by all sessions, never copied."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.cut.program import BlobSource, Program, WeightRef
from protos.errors import BadRequest, ImbrexError
from protos.failures import OutOfMemory
from tests.worker.room import Room
from tests.worker.support import conv_program


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
def test_matrix_too_large_for_the_memory_is_not_packed(tmp_path, monkeypatch, free_mb, memory_mb):
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
