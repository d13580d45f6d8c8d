"""A request in flight: what others know of it, and what of its results is read."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from coordinator.requests.request_state import RequestState, UnusableResult
from coordinator.tasks.plan import Block, Tile
from coordinator.tasks.task_graph import TaskGraph
from coordinator.tasks.timeline import TaskTimes, Timeline
from models.graph.graph import JoinedOutput
from models.tensors.boxes import Span
from models.tensors.selection import Selection, Selections
from protos import imbrex_pb2 as pb
from protos.wire.facts import DeviceId
from tests.requests.sketches import HALVES, A, B, C, R, chain, direct_chain


def done(task: int) -> pb.TaskDone:
    """What a device reports of a task."""
    return pb.TaskDone(task=task, ready_s=1.0, start_s=1.0, stop_s=2.0)


def empty(graph: TaskGraph) -> RequestState:
    """A request of which nothing has been computed."""
    outputs, done = dict.fromkeys(graph.outputs, np.empty(1)), asyncio.Future[None]()
    return RequestState(graph, outputs, done, Timeline(0.0), {})


def request(*devices: str) -> RequestState:
    """A request over these devices, each of which has computed a task."""
    graph = chain([HALVES])
    block = Block(0, 1, tuple(Tile(device, {}) for device in devices))  # type: ignore[arg-type]
    graph = replace(graph, plan=replace(graph.plan, blocks=(block,)))
    made = empty(graph)
    for task, device in enumerate(devices):
        made.computed(DeviceId(device), done(task), 0.0)
    return made


def times(made: RequestState) -> list[TaskTimes]:
    """What is known of its tasks when it has been answered."""
    made.answer(R)
    return made.timeline.tasks


async def test_devices_that_two_requests_use_are_shared_by_both() -> None:
    one, two, alone = request(A, B), request(B, C), request(A, B)
    one.meet(two)
    assert [each.shared for each in times(one)] == [False, True]
    assert [each.shared for each in times(two)] == [True, False]
    assert not any(each.shared for each in times(alone))


async def test_transfers_of_a_direct_plan_through_the_host_are_marked() -> None:
    graph = direct_chain([HALVES, HALVES])
    made = empty(graph)
    made.computed(A, done(0), 0.0)
    assert [each.relayed for each in times(made)] == [True]
    made.direct = True
    assert [each.relayed for each in times(made)] == [False]
    assert not any(each.relayed for each in times(request(A, B)))


SELECTION = Selection(axis=2, across=1, scores=Span(1, 3), least=0.5)


async def selecting(selections: Selections) -> RequestState:
    """A request with one result (1, 3, 8)."""
    graph = chain([HALVES])
    array, done = np.empty((1, 3, 8), np.float32), asyncio.get_running_loop().create_future()
    return RequestState(graph, {"t1": array}, done, Timeline(0.0), selections)


def sent(kept: list[int], axis: int = 2, stop: tuple[int, ...] = (1, 3, 8)) -> pb.Tensor:
    return pb.Tensor(
        tensor="t1",
        plan_version=chain([HALVES]).plan.version,
        box=pb.Box(start=[0] * len(stop), stop=stop),
        data_type=1,
        kept=pb.Tensor.Kept(axis=axis, entries=kept),
    )


async def test_entries_that_were_not_selected_are_zeros() -> None:
    state = await selecting({"t1": SELECTION})
    payload = np.arange(6, dtype=np.float32).reshape(1, 3, 2) + 1
    array = state.unpack(sent([1, 6]), payload)
    assert array.shape == (1, 3, 8)
    assert array[..., [1, 6]].tolist() == payload.tolist()
    assert np.count_nonzero(array) == payload.size


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (sent([1, 8]), "ascending"),
        (sent([6, 1]), "ascending"),
        (sent([1, 6], axis=1), "as a whole"),
        (sent([1, 6], stop=(1, 3, 9)), "not within"),
        (sent([1, 6], stop=(1, 1 << 31, 1 << 31)), "not within"),
        (sent([1, 6], stop=(1, 3, 8, 1)), "not within"),
    ],
)
async def test_entries_that_cannot_be_are_no_result(message: pb.Tensor, says: str) -> None:
    state = await selecting({"t1": SELECTION})
    with pytest.raises(UnusableResult, match=says):
        state.unpack(message, np.ones((1, 3, 2), np.float32))


async def test_entries_of_what_is_read_as_a_whole_are_no_result() -> None:
    state = await selecting({})
    with pytest.raises(UnusableResult, match="as a whole"):
        state.unpack(sent([1, 6]), np.ones((1, 3, 2), np.float32))


def test_tensor_that_a_task_reads_is_not_selected() -> None:
    last, inner = chain([HALVES, HALVES]), Selection(0, 1, Span(0, 1), 0.5)
    assert set(last.selectable({"t2": inner, "t1": inner})) == {"t2"}


def test_parts_of_an_output_are_selected_along_the_axis_that_joins_them() -> None:
    graph = replace(chain([HALVES]), joined={"y": JoinedOutput(2, ("near", "far"))})
    assert set(graph.selectable({"y": SELECTION})) == {"near", "far"}
    assert not graph.selectable({"y": replace(SELECTION, axis=1, across=2)})
