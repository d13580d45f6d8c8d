"""The process that computes tasks again says what is wrong, and nothing of what it cannot know."""

import asyncio
import fcntl
import sys
import termios
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper

from coordinator.audit import arbiter as module
from coordinator.audit.arbiter import Arbiter, NoVerdict
from coordinator.audit.case import Case
from coordinator.audit.job import AuditJob, ReceivedOutput
from coordinator.audit.recompute import recompute
from coordinator.tasks.events import RequestId
from models.catalogue.catalogue import LoadedModel
from models.catalogue.loading import network_of
from models.check.tolerance import PLAIN
from models.cut.cutter import cut
from models.cut.program import BlobSource, Program
from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.mapped import MappedWeights, location_of
from models.onnx_file.stored import in_memory
from models.run.reference import ProgramRunner
from models.tensors.boxes import Box, Span
from models.tensors.selection import Selection, dense
from protos.wire.facts import DeviceId
from tests.waiting import until


@pytest.fixture
async def arbiter() -> AsyncIterator[Arbiter]:
    made = Arbiter()
    yield made
    made.close()


def case(folder: Path | None = None, channels: tuple[int, int] = (0, 32)) -> Case:
    """A tile that was computed rightly: some channels of a convolution, with weights mapped from a
    file of `folder`.
    """
    net = NetworkBuilder("net", seed=1)
    x = net.input("x", (1, 16, 24, 24)).conv("conv", 32, square(3)).relu()
    room = MappedWeights(folder, [1 << 20]).empty if folder else in_memory
    graph = network_of(LoadedModel("net", net.stored(x), None, False), room=room).graph
    (name,) = graph.outputs
    box = Box.of((0, 1), channels, (0, 24), (0, 24))
    blobs = BlobSource()
    piece = cut(graph, graph.nodes, {name: box}, blobs, static=True)
    inputs = {
        key: np.random.default_rng(2).standard_normal(each.shape, np.float32)
        for key, each in piece.inputs.items()
    }
    (made,) = ProgramRunner(blobs, threads=1).run(piece.program, inputs, [name])
    lower = Box.of((0, 1), channels, (12, 24), (0, 24))
    received = [
        ReceivedOutput(name, box, box, made),
        ReceivedOutput(name, lower, box, made[:, :, 12:].copy()),
    ]
    return Case(
        RequestId("r"), "net", DeviceId("d"), 0, PLAIN, piece.program, blobs, inputs, received
    )


async def test_correct_results_are_not_judged_wrong(arbiter: Arbiter) -> None:
    for _ in range(3):
        found = await arbiter.judge(case())
        assert found.difference <= 1e-6
        assert not found.is_wrong(PLAIN)


@pytest.mark.parametrize("claim", [0, 1])
async def test_wrong_row_that_one_reader_received_is_found(arbiter: Arbiter, claim: int) -> None:
    wrong = case()
    most = np.abs(wrong.received[claim].array).max()
    wrong.received[claim].array[0, 3, 5] += 0.001 * most
    found = await arbiter.judge(wrong)
    assert found.is_wrong(PLAIN)
    assert 0.0005 < found.difference < 0.002


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
async def test_results_that_are_not_finite_are_wrong(arbiter: Arbiter, value: float) -> None:
    wrong = case()
    wrong.received[1].array[0, 0, 0, 0] = value
    assert (await arbiter.judge(wrong)).difference == np.inf


@pytest.mark.parametrize("channels", [(0, 32), (8, 24)])
async def test_mapped_weights_are_read_from_their_file(
    arbiter: Arbiter, tmp_path: Path, channels: tuple[int, int]
) -> None:
    right = case(tmp_path, channels)
    weight = max(right.program.weights, key=lambda ref: len(ref.dims))
    assert location_of(right.blobs.array_of(weight.sha256)) is not None
    assert not (await arbiter.judge(right)).is_wrong(PLAIN)
    right.received[0].array[...] = 0
    assert (await arbiter.judge(right)).is_wrong(PLAIN)


def selecting(least: float, kept: bool) -> Case:
    """The whole output as boxes: columns of one row are entries, its channels their scores."""
    net = NetworkBuilder("net", seed=1)
    x = net.input("x", (1, 16, 1, 24)).conv("conv", 32, square(3))
    graph = network_of(LoadedModel("net", net.stored(x), None, False)).graph
    (name,) = graph.outputs
    box, blobs = Box.whole(graph.shape(name)), BlobSource()
    piece = cut(graph, graph.nodes, {name: box}, blobs, static=True)
    rng = np.random.default_rng(2)
    inputs = {
        key: rng.standard_normal(each.shape, np.float32) for key, each in piece.inputs.items()
    }
    (made,) = ProgramRunner(blobs, threads=1).run(piece.program, inputs, [name])
    selection = Selection(axis=3, across=1, scores=Span(0, 32), least=least)
    if kept:
        chosen = selection.chosen(made)
        assert 0 < len(chosen) < made.shape[3]
        made = dense(made.take(chosen, 3), chosen.tolist(), 3, made.shape)
    received = [ReceivedOutput(name, box, box, made, selection)]
    return Case(
        RequestId("r"), "net", DeviceId("d"), 0, PLAIN, piece.program, blobs, inputs, received
    )


@pytest.mark.parametrize("kept", [True, False])
async def test_selected_entries_are_right_alone_or_with_all_others(
    arbiter: Arbiter, kept: bool
) -> None:
    assert not (await arbiter.judge(selecting(2.0, kept))).is_wrong(PLAIN)


async def test_an_entry_that_was_left_out_or_made_up_is_wrong(arbiter: Arbiter) -> None:
    hidden, invented = selecting(2.0, kept=True), selecting(2.0, kept=True)
    array = hidden.received[0].array
    likely = np.flatnonzero(array.any(axis=(0, 1, 2)))
    array[..., likely[0]] = 0
    assert (await arbiter.judge(hidden)).is_wrong(PLAIN)
    unlikely = np.flatnonzero(~invented.received[0].array.any(axis=(0, 1, 2)))
    invented.received[0].array[0, 0, 0, unlikely[0]] = 2.5
    assert (await arbiter.judge(invented)).is_wrong(PLAIN)


async def test_task_that_cannot_be_computed_here_gives_no_verdict(arbiter: Arbiter) -> None:
    broken = case()
    broken.program = Program(b"no graph", ())
    with pytest.raises(NoVerdict, match="cannot be computed here"):
        await arbiter.judge(broken)
    missing = case()
    missing.inputs.clear()
    with pytest.raises(NoVerdict, match="cannot be computed here"):
        await arbiter.judge(missing)
    assert not (await arbiter.judge(case())).is_wrong(PLAIN)


RECOMPUTE = "coordinator.audit.recompute"


def recomputing() -> list[psutil.Process]:
    """The processes of arbiters that have not ended."""
    return [
        process
        for process in psutil.Process().children()
        if process.status() != psutil.STATUS_ZOMBIE and RECOMPUTE in process.cmdline()
    ]


def unread(process: psutil.Process) -> int:
    """The bytes that a suspended process was sent."""
    with open(f"/proc/{process.pid}/fd/0", "rb") as pipe:
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


async def test_a_process_that_dies_says_nothing_and_comes_back(arbiter: Arbiter) -> None:
    await arbiter.judge(case())
    (process,) = recomputing()
    process.suspend()
    asked = asyncio.create_task(arbiter.judge(case()))
    await until(partial(unread, process))
    process.kill()  # as the system does where memory is short
    with pytest.raises(NoVerdict):
        await asked
    assert not (await arbiter.judge(case())).is_wrong(PLAIN)


async def test_arbiter_without_work_has_no_process(
    arbiter: Arbiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.01)
    await arbiter.judge(case())
    assert recomputing()
    await until(lambda: not recomputing())
    assert not (await arbiter.judge(case())).is_wrong(PLAIN)


@pytest.mark.parametrize("low", [-9.0, -11.0])
def test_small_values_of_an_exact_sigmoid_are_not_wrong(low: float) -> None:
    """onnxruntime's has steps of 2^-24; another engine's may have none."""
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 1, 64, 64)) for name in "xy"]
    node = helper.make_node("Sigmoid", ["x"], ["y"])
    graph = helper.make_graph([node], "gates", info[:1], info[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    box = Box.of((0, 1), (0, 1), (0, 64), (0, 64))
    x = np.random.default_rng(0).uniform(low, low + 2, box.shape).astype(np.float32)
    exact = (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)

    def judged(array: np.ndarray) -> bool:
        received = (ReceivedOutput("y", box, box, array),)
        job = AuditJob(made.SerializeToString(), (), {"x": x}, received, PLAIN)
        return recompute(job).is_wrong(PLAIN)

    assert not judged(exact)
    wrong = exact.copy()
    wrong[0, 0, 5, 5] += 1e-6
    assert judged(wrong)


def test_a_class_that_two_equal_logits_decide_is_not_wrong() -> None:
    """Rounding picks the class of a pixel; a device that is wrong differs in most of them."""
    kinds = {"x": (TensorProto.FLOAT, (1, 4, 16, 16)), "y": (TensorProto.INT64, (1, 16, 16))}
    x_info, y_info = (helper.make_tensor_value_info(name, *kinds[name]) for name in "xy")
    node = helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)
    graph = helper.make_graph([node], "classes", [x_info], [y_info])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    x = np.random.default_rng(0).standard_normal(kinds["x"][1]).astype(np.float32)
    box = Box.whole(kinds["y"][1])

    def judged(array: np.ndarray) -> bool:
        received = (ReceivedOutput("y", box, box, array),)
        job = AuditJob(made.SerializeToString(), (), {"x": x}, received, PLAIN)
        return recompute(job).is_wrong(PLAIN)

    right = x.argmax(axis=1)
    assert not judged(right)
    tied = right.copy()
    tied[0, 5, 5] = (tied[0, 5, 5] + 2) % 4
    assert not judged(tied)
    assert judged((right + 1) % 4)
