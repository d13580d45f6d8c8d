import asyncio
import time

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
