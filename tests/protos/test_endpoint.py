import asyncio
import time

import uvloop

from protos.endpoint import Endpoint


async def test_without_costs_nothing_waits():
    endpoint = Endpoint()
    handling = endpoint.handle(1 << 20)
    try:
        handling.send(None)
    except StopIteration:
        done = True
    assert done
    assert endpoint.handled == 1


async def test_messages_are_handled_one_after_the_other():
    endpoint = Endpoint(message_s=0.02, byte_s=1e-5)
    begin, ends = time.monotonic(), []

    async def one(size):
        await endpoint.handle(size)
        ends.append((size, time.monotonic() - begin))

    await asyncio.gather(one(1000), one(0), one(2000))
    assert [size for size, _ in ends] == [1000, 0, 2000]
    for (_, taken), least in zip(ends, (0.03, 0.05, 0.09), strict=True):
        assert taken >= least


def test_what_timers_are_early_does_not_add_up():
    cost_s, messages = 0.0034, 30

    async def one_by_one():
        endpoint = Endpoint(message_s=cost_s)
        for _ in range(messages):
            # The endpoint is free again before the next message comes.
            await asyncio.sleep(0.001)
            begin = time.monotonic()
            await endpoint.handle(0)
            taken.append(time.monotonic() - begin)

    taken = []
    # uvloop, as in the daemons, rounds timers to whole milliseconds.
    uvloop.run(one_by_one())
    assert sum(taken) > messages * cost_s - 0.002
