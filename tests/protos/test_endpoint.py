import asyncio
import time

import pytest

from imbrex.demo.emulation.emulated_link import SlowEndpoint
from protos import imbrex_pb2 as pb
from protos.wire.endpoint import Endpoint


async def test_endpoint_without_costs_does_not_wait():
    endpoint = Endpoint()
    handling = endpoint.handle(1 << 20)
    try:
        handling.send(None)
    except StopIteration:
        done = True
    assert done
    assert endpoint.handled == 1


async def test_messages_are_handled_one_after_the_other():
    endpoint = SlowEndpoint(message_s=0.02, byte_s=1e-5)
    begin, ends = time.monotonic(), []

    async def one(size):
        await endpoint.handle(size)
        ends.append((size, time.monotonic() - begin))

    await asyncio.gather(one(1000), one(0), one(2000))
    assert [size for size, _ in ends] == [1000, 0, 2000]
    for (_, taken), least in zip(ends, (0.03, 0.05, 0.09), strict=True):
        assert taken >= least


class Coarse:
    """A clock whose timers are rounded to milliseconds, as uvloop's, and then a little late."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s

    async def sleep(self, seconds):
        self.now_s += round(seconds, 3) + 0.0001


async def test_describing_tasks_takes_time_that_other_items_do_not(monkeypatch):
    clock = Coarse()
    monkeypatch.setattr("imbrex.demo.emulation.emulated_link.time", clock)
    monkeypatch.setattr("imbrex.demo.emulation.emulated_link.asyncio", clock)
    endpoint = SlowEndpoint(describe_s=0.02)
    await endpoint.handle(10, [pb.Item(ping=pb.Ping())])
    assert (endpoint.handled, clock.now_s) == (1, 0.0)
    await endpoint.handle(10, [pb.Item(task=pb.Task()), pb.Item(task=pb.Task())])
    assert clock.now_s == pytest.approx(0.04, abs=0.001)


@pytest.mark.parametrize("message_s", [0.0034, 0.0036, 0.0041])
async def test_errors_of_timers_do_not_add_up(monkeypatch, message_s):
    clock = Coarse()
    monkeypatch.setattr("imbrex.demo.emulation.emulated_link.time", clock)
    monkeypatch.setattr("imbrex.demo.emulation.emulated_link.asyncio", clock)
    endpoint, taken_s, messages = SlowEndpoint(message_s=message_s), 0.0, 30
    for _ in range(messages):
        clock.now_s += 0.01  # the endpoint has been free for long
        begin_s = clock.now_s
        await endpoint.handle(0)
        taken_s += clock.now_s - begin_s
    assert taken_s == pytest.approx(messages * message_s, abs=0.001)
