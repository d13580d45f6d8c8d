"""Messages past gRPC: how they come off the wire, and what a broken or hostile end does."""

import asyncio
import random
import socket
import struct

import pytest

from protos.errors import LostWorker, PeerViolation
from protos.rpc.direct import TOKEN_BYTES, Direct, accept_offer, offer
from protos.wire.frames import MAX_MESSAGE_BYTES
from tests.waiting import until


async def opened(most_bytes=MAX_MESSAGE_BYTES):
    """A stream, and the socket at its other end."""
    near, far = socket.socketpair()
    far.setblocking(False)
    stream = Direct(most_bytes)
    await asyncio.get_running_loop().create_connection(lambda: stream, sock=near)
    return stream, far


async def pair():
    """Both ends of a stream."""
    near, far = socket.socketpair()
    ends = Direct(MAX_MESSAGE_BYTES), Direct(MAX_MESSAGE_BYTES)
    for end, own in zip(ends, (near, far), strict=True):
        await asyncio.get_running_loop().create_connection(lambda end=end: end, sock=own)
    return ends


def framed(*messages):
    return b"".join(struct.pack("<I", len(each)) + each for each in messages)


SIZES = (0, 1, 3, 4, 100, 65_531, 65_532, 65_533, 65_536, 200_000, 5, 0, 1_500_000, 7)


@pytest.mark.parametrize("at_once", [1, 3, 4, 5, 65_536, 100_000, 1 << 22])
async def test_messages_come_as_they_left_however_they_are_cut(at_once):
    rng = random.Random(at_once)
    sizes = SIZES if at_once > 5 else SIZES[:5]
    messages = [rng.randbytes(size) for size in sizes]
    stream, far = await opened()
    data = framed(*messages)

    async def sending():
        for start in range(0, len(data), at_once):
            await asyncio.get_running_loop().sock_sendall(far, data[start : start + at_once])

    sent = asyncio.create_task(sending())
    for message in messages:
        assert bytes(await stream.read()) == message
    await sent
    far.close()
    assert await stream.read() is None
    stream.close()


async def test_messages_are_read_in_order_and_wait_while_nobody_reads():
    one, other = await pair()
    big = random.Random(0).randbytes(3 << 20)
    writing = asyncio.create_task(one.write([b"a", memoryview(big), b"", b"z"]))
    last = asyncio.create_task(one.write([b"last"]))
    assert bytes(await other.read()) == b"a" + big + b"z"
    assert bytes(await other.read()) == b"last"
    await asyncio.gather(writing, last)
    # So much waits unread that no more is taken off the wire.
    flood = asyncio.create_task(_flood(one))
    await until(lambda: other._is_paused)
    waiting = len(other._messages)
    assert waiting < 50
    for _ in range(200):
        assert len(await other.read()) == 100_000
    await flood
    one.close()
    other.close()


async def _flood(stream):
    for _ in range(200):
        await stream.write([bytes(100_000)])


async def test_a_message_that_is_too_long_is_refused_before_it_is_read():
    stream, far = await opened(TOKEN_BYTES)
    far.send(framed(b"x" * TOKEN_BYTES) + struct.pack("<I", TOKEN_BYTES + 1))
    assert bytes(await stream.read()) == b"x" * TOKEN_BYTES
    with pytest.raises(PeerViolation, match="33 bytes, limit 32"):
        await stream.read()
    with pytest.raises(LostWorker, match="has ended"):
        await stream.write([b"more"])
    far.close()


async def test_the_longest_length_takes_no_memory():
    stream, far = await opened()
    far.send(struct.pack("<I", 2**32 - 1))
    with pytest.raises(PeerViolation, match="limit 67108864"):
        await stream.read()
    far.close()


@pytest.mark.parametrize("half", [b"\x05", b"\x05\0\0\0abc", struct.pack("<I", 100_000) + b"x"])
async def test_a_stream_that_breaks_off_within_a_message_has_ended(half):
    stream, far = await opened()
    far.send(framed(b"whole") + half)
    far.close()
    assert bytes(await stream.read()) == b"whole"
    assert await stream.read() is None
    with pytest.raises(LostWorker):
        await stream.write([b"x"])


async def test_reader_and_writer_are_woken_when_the_stream_ends():
    one, other = await pair()
    reading = asyncio.create_task(one.read())
    writing = asyncio.create_task(one.write([bytes(30 << 20)]))
    await asyncio.sleep(0)  # more is written than the kernel takes
    assert not writing.done()
    other.abort()
    assert await reading is None
    with pytest.raises(LostWorker):
        await writing


@pytest.mark.parametrize("told", [(), (("imbrex-direct", ""),), (("imbrex-direct", "12"),)])
async def test_without_an_offer_there_is_nothing_to_connect_to(told):
    assert await accept_offer(told, "127.0.0.1:1", "", None) is None
    odd = (("imbrex-direct", "x y"), ("imbrex-direct", "-1 t"))
    assert await accept_offer(odd, "127.0.0.1:1", "", None) is None


async def test_an_offer_that_leads_nowhere_says_so():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(LostWorker, match="refused"):
        await accept_offer(offer(port, "t"), "127.0.0.1:1", "", None)
    with pytest.raises(LostWorker):
        await accept_offer((("imbrex-direct", "99999999 t"),), "127.0.0.1:1", "", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        # It takes the connection, and hangs up instead of letting us in.
        there = offer(server.getsockname()[1], "t")
        joining = asyncio.create_task(accept_offer(there, "127.0.0.1:1", "", None))
        accepted, _ = await asyncio.to_thread(server.accept)
        accepted.close()
        with pytest.raises(LostWorker):
            await joining
