"""The end of a task travels with the next message, or by itself if none follows."""

import asyncio

import pytest

from protos.wire.frames import decode
from worker.exchange import exchange
from worker.exchange.exchange import ResultQueue
from worker.tasks.actions import TaskEnd, TaskKey
from worker.tasks.task_items import done_item


def end(task):
    return TaskEnd(TaskKey("r", 1, task, 0), 1.0, 2.0, 3.0)


@pytest.fixture
async def sent():
    """A queue, and the tasks of which each message that it wrote tells the end."""
    box, messages = ResultQueue(), []

    async def write():
        while (buffers := await box.next()) is not None:
            items = [item for item, _ in decode(b"".join(bytes(each) for each in buffers))]
            messages.append([item.done.task for item in items if item.HasField("done")])

    writing = asyncio.create_task(write())
    yield box, messages
    box.close()
    await writing


async def test_the_next_message_takes_along_what_is_held(sent):
    box, messages = sent
    box.hold(end(1))
    box.hold(end(2))
    box.add([([done_item(end(3))], [])])
    await asyncio.sleep(0.01)
    assert messages == [[1, 2, 3]]


async def test_held_end_of_a_task_goes_alone_if_nothing_follows(sent, monkeypatch):
    monkeypatch.setattr(exchange, "HOLD_S", 0.02)
    box, messages = sent
    for number in range(3):
        box.hold(end(number))
        await asyncio.sleep(0.1)
    assert messages == [[0], [1], [2]]
