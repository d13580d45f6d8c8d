"""Evidence: what was asked for is taken, and nothing else."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from coordinator.audit.case import Case, RequestedBox, can_be_judged, tasks_by_device, tolerance_of
from coordinator.audit.collector import Collector
from coordinator.tasks.events import RequestId
from models.check.tolerance import ACROSS, HALF, PLAIN
from models.cut.program import BlobSource, Program, WeightRef
from models.onnx_file.mapped import MappedWeights
from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.errors import LostWorker
from protos.wire.convert import box_message
from protos.wire.facts import DeviceId

A, B = DeviceId("a"), DeviceId("b")
BOX = Box.of((0, 1), (4, 8))
REQUEST = RequestId("r")


def case() -> Case:
    target = np.full(BOX.shape, np.nan, np.float32)
    wanted = RequestedBox(A, [pb.Item()], (A, 3, 0, "y"), BOX, target, BOX.volume)
    made = Case(REQUEST, "net", A, 3, PLAIN, Program(b"", ()), BlobSource())
    made.wanted.append(wanted)
    return made


def test_a_box_may_come_in_parts() -> None:
    made = case()
    assert made.fill((A, 3, 0, "y"), Box.of((0, 1), (4, 6)), np.ones((1, 2), np.float32))
    assert not made.is_complete
    assert made.fill((A, 3, 0, "y"), Box.of((0, 1), (6, 8)), np.ones((1, 2), np.float32))
    assert made.is_complete
    assert (made.wanted[0].target == 1).all()


@pytest.mark.parametrize(
    ("key", "box", "array"),
    [
        ((B, 3, 0, "y"), BOX, np.ones((1, 4), np.float32)),  # another device
        ((A, 3, 1, "y"), BOX, np.ones((1, 4), np.float32)),  # another attempt
        ((A, 3, 0, "z"), BOX, np.ones((1, 4), np.float32)),
        ((A, 3, 0, "y"), Box.of((0, 1), (4, 9)), np.ones((1, 5), np.float32)),
        ((A, 3, 0, "y"), BOX, np.ones((1, 4), np.float64)),
        ((A, 3, 0, "y"), BOX, np.ones((1, 3), np.float32)),
    ],
)
def test_evidence_that_was_not_asked_for_is_not_taken(key, box, array) -> None:
    made = case()
    assert not made.fill(key, box, array)
    assert not made.is_complete
    assert np.isnan(made.wanted[0].target).all()


class Wire:
    """Answers each order with these items."""

    def __init__(self, *answers) -> None:
        self.answers = answers
        self.collector = Collector(self, SimpleNamespace(evidence={}))

    def connection(self, device):
        """As the pool: each device answers so."""
        return SimpleNamespace(send=partial(self.send, device))

    async def send(self, device, items, payloads) -> None:
        for item, payload in self.answers:
            self.taken = self.collector.received(device, item, payload)


def tensor(array: np.ndarray, **changes) -> pb.Item:
    told = {"request": REQUEST, "task": 3, "tensor": "y", "box": box_message(BOX)}
    return pb.Item(tensor=pb.Tensor(**(told | changes)))


async def test_a_device_that_answers_is_believed_to_have_answered() -> None:
    array = np.ones(BOX.shape, np.float32)
    made = case()
    await Wire((tensor(array), array)).collector.collect(REQUEST, [made], 5.0)
    assert made.is_complete


async def test_a_device_that_keeps_nothing_says_so_and_one_that_is_silent_is_named() -> None:
    failed = pb.Item(
        failed=pb.TaskFailed(request=REQUEST, task=3, code="no_output", message="gone")
    )
    with pytest.raises(LostWorker, match="a did not send"):
        await Wire((failed, None)).collector.collect(REQUEST, [case()], 5.0)
    with pytest.raises(LostWorker, match=r"a did not send.*0 s"):
        await Wire().collector.collect(REQUEST, [case()], 0.01)


async def test_messages_that_no_audit_waits_for_are_passed_on() -> None:
    array = np.ones(BOX.shape, np.float32)
    wire = Wire()
    assert not wire.collector.received(A, tensor(array), array)
    assert not wire.collector.received(A, pb.Item(pong=pb.Ping()), None)
    failed = pb.Item(failed=pb.TaskFailed(request=REQUEST, task=3, code="runtime"))
    assert not wire.collector.received(A, failed, None)


def graph_of(*arrays: np.ndarray) -> SimpleNamespace:
    """A graph with a task for each of these weights."""
    blobs = BlobSource()
    programs = {
        str(number): Program(b"", (WeightRef("w", blobs.add(array), 1, array.shape),))
        for number, array in enumerate(arrays)
    }
    tasks = tuple(SimpleNamespace(program=name, outputs=()) for name in programs)
    return SimpleNamespace(tasks=tasks, programs=programs, blobs=blobs)


def test_task_whose_large_weights_would_be_copied_is_not_judged(tmp_path) -> None:
    large = np.zeros((3000, 1000), np.float32)
    mapped = MappedWeights(tmp_path, [large.nbytes]).empty(large.dtype, large.shape)
    mapped[:] = large + 1
    graph = graph_of(large, mapped, mapped[:, :100], np.zeros(10, np.float32))
    judged = [can_be_judged(graph, task) for task in range(4)]
    assert judged == [False, True, True, True]
    assert not can_be_judged(graph_of(mapped[:, :900]), 0)


def test_request_with_a_retried_task_is_not_judged() -> None:
    small = np.zeros(10, np.float32)
    flight = SimpleNamespace(
        retried=0, attempts={(0, 0): A, (1, 0): B}, graph=graph_of(small, small + 1)
    )
    assert tasks_by_device(flight) == {A: [0], B: [1]}
    flight.retried, flight.attempts = 1, {**flight.attempts, (1, 1): A}
    assert tasks_by_device(flight) == {}


def test_processors_of_another_kind_may_round_otherwise() -> None:
    alike = SimpleNamespace(is_alike=lambda device: device == A)
    assert tolerance_of(PLAIN, A, alike) == PLAIN
    assert tolerance_of(PLAIN, B, alike) == ACROSS
    assert tolerance_of(HALF, B, alike) == HALF
