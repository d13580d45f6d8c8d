"""What ncnn's weights take: Winograd's algorithm where a byte saves most time, within the room."""

from math import inf

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.cut.program import Program
from worker.engines.base import Place
from worker.engines.registry import factory_of
from worker.programs.store import BlobStore

pytest.importorskip("worker.engines.ncnn", reason="needs the extra ncnn")
from worker.engines.ncnn_layers import translate

CHANNELS = 64
# Two layers of weights and biases, each with the word before weights that tells their type.
PLAIN_BYTES = 2 * 4 * (9 * CHANNELS * CHANNELS + CHANNELS + 1)
# Weights of one layer in tiles of 4 x 4 beyond those of 3 x 3.
MORE_BYTES = 4 * 27 * CHANNELS * CHANNELS
SHAPES = {"x": (1, CHANNELS, 32, 32)}


@pytest.fixture(scope="module")
def program() -> tuple[Program, dict[str, np.ndarray]]:
    """A convolution of a large map, a pool, and one of a small map; and weights by name."""
    noise = np.random.default_rng(0)
    weights = {
        name: noise.standard_normal((CHANNELS, CHANNELS, 3, 3), dtype=np.float32) / 24
        for name in ("large", "small")
    } | {"bias": noise.standard_normal(CHANNELS, dtype=np.float32)}
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "large", "bias"], ["a"], **window),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Conv", ["b", "small", "bias"], ["y"], **window),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, CHANNELS, "rows", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    file = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return Program(file, ()), weights


def with_winograd(text: str) -> list[bool]:
    """Which convolutions are computed by Winograd's algorithm."""
    lines = [line.split() for line in text.splitlines()]
    return ["31=64" not in words for words in lines if words[0] == "Convolution"]


@pytest.mark.parametrize(
    ("room_bytes", "chosen", "taken_bytes"),
    [
        (inf, [True, True], PLAIN_BYTES + 2 * MORE_BYTES),
        (PLAIN_BYTES + 2 * MORE_BYTES, [True, True], PLAIN_BYTES + 2 * MORE_BYTES),
        (PLAIN_BYTES + 2 * MORE_BYTES - 1, [True, False], PLAIN_BYTES + MORE_BYTES),
        (PLAIN_BYTES, [False, False], PLAIN_BYTES),
        (0, [False, False], PLAIN_BYTES),
    ],
)
def test_little_room_is_for_the_layer_in_which_a_byte_saves_most(
    program, room_bytes, chosen, taken_bytes
) -> None:
    graph = translate(program[0], program[1], SHAPES, 1, room_bytes)
    assert with_winograd(graph.text) == chosen
    assert graph.weight_bytes == taken_bytes


def test_smaller_tiles_are_taken_where_larger_ones_have_no_room(program) -> None:
    room_bytes = PLAIN_BYTES + 2 * MORE_BYTES // 3
    graph = translate(program[0], program[1], SHAPES, 1, room_bytes)
    assert (graph.tile, with_winograd(graph.text)) == (2, [True, True])
    assert PLAIN_BYTES < graph.weight_bytes <= room_bytes


def test_nets_leave_each_other_room_and_give_it_back(program, tmp_path) -> None:
    memory_bytes = 4 * (PLAIN_BYTES + 2 * MORE_BYTES)
    place = Place(tmp_path / "programs", BlobStore(tmp_path, 1 << 30), 1, memory_bytes)
    engine = factory_of("ncnn")(place)
    engine.prepare(program[0])
    whole = memory_bytes // 4
    assert engine.room_bytes == whole
    feeds = {"x": np.random.default_rng(1).standard_normal(SHAPES["x"], dtype=np.float32)}
    runnables = [engine.load(program[0].sha256) for _ in range(3)]
    (expected,) = ort.InferenceSession(program[0].graph).run(None, feeds)
    rooms = []
    for rows, runnable in zip((32, 16, 8), runnables, strict=True):
        part = {"x": np.ascontiguousarray(feeds["x"][:, :, :rows])}
        outputs = runnable.bound(part, {"y": (1, CHANNELS, rows // 4, 8)}).compute()
        if rows == 32:
            assert np.abs(outputs["y"] - expected).max() <= 3e-6 * np.abs(expected).max()
        rooms.append(engine.room_bytes)
    assert whole > rooms[0] > rooms[1] > rooms[2] >= 0
    runnables.clear()
    del runnable
    assert engine.room_bytes == whole
