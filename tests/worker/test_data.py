"""The data plane: packets, streams, and what hostile neighbours do to them."""

import errno
import random
import socket
import struct
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.tensors.boxes import Box
from protos.errors import LostWorker, PeerViolation
from protos.rpc.channels import Caller
from protos.wire.endpoint import Endpoint
from protos.wire.frames import MAX_TENSOR_BYTES
from tests.waiting import until
from worker.peers import packets
from worker.peers.data_stream import DataStream, connect
from worker.peers.listener import MOST_STREAMS_OF_A_PEER, DataListener
from worker.peers.offers import Offers
from worker.tasks.actions import SendToPeer, TaskKey, TensorPiece

KEY = TaskKey("request", 3, 5, 1)
BOX = Box.of((0, 1), (0, 8), (2, 4), (0, 100))


def piece(array, box=None, tensor="y"):
    return TensorPiece(KEY, tensor, box or Box.whole(array.shape), array)


def sent(*pieces):
    """What these pieces are on the wire."""
    return b"".join(packets.packets(pieces))


class Bytes:
    """A socket from which at most so many bytes are received at once."""

    def __init__(self, data, at_once):
        self._data, self._at_once = data, at_once

    def recv_into(self, view):
        size = min(len(view), self._at_once)
        part, self._data = self._data[:size], self._data[size:]
        view[: len(part)] = part
        return len(part)


def read(data, at_once=1 << 20):
    """The packets in some bytes, as (tensor, box, array, is last)."""
    reader = packets.PacketReader(Bytes(data, at_once), "a")
    while (found := reader.next()) is not None:
        got, is_last = found
        assert (got.key, got.sender) == (KEY, "a")
        yield got.tensor, got.box, got.array, is_last


@given(
    shape=st.lists(st.integers(0, 9), max_size=5),
    dtype=st.sampled_from(["f4", "u1", "i8", "?", "f2"]),
    name=st.text(max_size=20),
    at_once=st.sampled_from([1, 7, 1000, 1 << 20]),
)
def test_packets_come_as_they_left(shape, dtype, name, at_once):
    array = (np.arange(np.prod(shape, dtype=int)) % 2).astype(dtype).reshape(shape)
    part = piece(array, tensor=name)
    found, again = read(sent(part) * 2, at_once)
    assert found[:2] == again[:2]
    assert np.array_equal(found[2], again[2])
    assert found[:2] == (name, part.box)
    assert found[2].dtype == array.dtype
    assert np.array_equal(found[2], array)
    assert found[3]


def test_strided_views_and_large_boxes_are_cut_and_whole_again():
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((1, 64, 300, 200), dtype=np.float32)
    box = Box.of((0, 1), (0, 64), (10, 290), (0, 200))
    view = whole[box.slices()]
    assert view.nbytes > 2 * MAX_TENSOR_BYTES
    assert not view.flags.c_contiguous
    small = piece(whole[:, :, :1, 5:9], Box.of((0, 1), (0, 64), (0, 1), (5, 9)), "small")
    again = np.full_like(whole, np.nan)
    found = list(read(sent(small, piece(view, box))))
    assert [is_last for *_, is_last in found] == [False] * (len(found) - 1) + [True]
    assert np.array_equal(found[0][2], small.array)
    for _, part, array, _ in found[1:]:
        assert array.nbytes <= MAX_TENSOR_BYTES
        again[part.slices()] = array
    assert np.array_equal(again[box.slices()], view)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: b"\0\0" + data[2:], "malformed packet"),
        (lambda data: data[:2] + b"\xff" + data[3:], "malformed packet"),
        (lambda data: data[:3] + b"\x63" + data[4:], "data type 99"),
        (lambda data: data[:20] + struct.pack("<I", 7) + data[24:], "sent 7 bytes for a box"),
        (lambda data: data[:24] + b"\xff\xff" + data[26:], "malformed packet"),
        (lambda data: data[:10], "within a packet"),
        (lambda data: data[:35], "within a packet"),
        (lambda data: data[:-1], "within a packet"),
        (lambda data: data[:28] + b"\xff" * 8 + data[36:], "not UTF-8"),
        (lambda data: data.replace(struct.pack("<II", 2, 4), struct.pack("<II", 4, 2)), "ends"),
    ],
)
def test_packets_that_make_no_sense_are_refused(change, said):
    data = sent(piece(np.zeros(BOX.shape, np.float32), BOX))
    list(read(data))
    with pytest.raises(PeerViolation, match=said):
        list(read(change(data)))


def test_a_box_of_many_gigabytes_allocates_nothing():
    header = packets.HEADER.pack(packets.LAST, 2, 1, 1, 1, 1, 2**32 - 1, 1, 1)
    data = header + b"ry" + struct.pack("<4I", 0, 2**31, 0, 2**31)
    with pytest.raises(PeerViolation, match="for a box"):
        list(read(data))


@pytest.fixture
async def heard():
    """A listener in a cluster with a secret, and what it was given."""
    pieces = []
    listener = DataListener("127.0.0.1", 0, Caller("b", "s"), pieces.append, Offers())
    yield listener, pieces
    listener.close()
    names = {"data accept", "data reader"}
    await until(lambda: names.isdisjoint(each.name for each in threading.enumerate()))


def link_to(listener, sender="a", secret="s", broken=None):
    address = f"127.0.0.1:{listener.port}"
    stream = connect(address, "b", Caller(sender, secret))
    link = DataStream(stream, Endpoint())
    if broken is not None:
        link.broken = lambda *what: broken.append(what)
    return link


def action(*pieces):
    return SendToPeer("b", "b:1", pieces, KEY)


async def test_pieces_arrive_once_and_in_order(heard):
    listener, pieces = heard
    link = link_to(listener)
    arrays = [np.full((1, 3, n % 7 + 1, 9), n, np.float32) for n in range(500)]
    for array in arrays:
        assert link.send(action(piece(array)))
    await until(lambda: len(pieces) == len(arrays))
    assert all(np.array_equal(got.array, array) for got, array in zip(pieces, arrays, strict=True))
    assert {got.sender for got in pieces} == {"a"}
    link.close()


async def test_pieces_are_read_while_an_earlier_one_is_computed():
    pieces, goes_on = [], threading.Event()

    def deliver(piece):
        pieces.append(piece)
        return (lambda: goes_on.wait(10)) if len(pieces) == 1 else None

    listener = DataListener("127.0.0.1", 0, Caller("b", "s"), deliver, Offers())
    link = link_to(listener)
    for number in range(3):
        assert link.send(action(piece(np.full((1, 2), number, np.float32))))
    await until(lambda: len(pieces) == 3)
    goes_on.set()
    assert [int(got.array[0, 0]) for got in pieces] == [0, 1, 2]
    link.close()
    listener.close()


async def test_large_pieces_follow_when_the_socket_is_full(heard):
    listener, pieces = heard
    link = link_to(listener)
    arrays = [np.full((1, 1 << 20), n, np.float32) for n in range(24)]
    senders = [
        threading.Thread(target=lambda part=part: link.send(action(piece(part)))) for part in arrays
    ]
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    await until(lambda: len(pieces) == len(arrays))
    assert sorted(int(got.array[0, 0]) for got in pieces) == list(range(24))
    assert all((got.array == got.array[0, 0]).all() for got in pieces)
    link.close()


async def test_a_stream_that_the_neighbour_closed_takes_nothing_more(heard):
    listener, pieces = heard
    broken = []
    link = link_to(listener, broken=broken)
    assert link.send(action(piece(np.zeros((1, 2), np.float32))))
    await until(lambda: len(pieces) == 1)
    listener.keep(())
    await until(lambda: not link.send(action(piece(np.zeros((1, 2), np.float32)))))
    ((unsent, error),) = broken
    assert list(unsent) == []
    assert isinstance(error, LostWorker)
    link.close()


async def test_closed_stream_is_not_reported_as_broken(heard):
    listener, _ = heard
    broken = []
    for _ in range(20):
        link = link_to(listener, broken=broken)
        link.close()
    assert broken == []


@pytest.mark.parametrize(("sender", "secret"), [("a", ""), ("a", "wrong"), ("", "S")])
async def test_sender_without_the_secret_is_not_let_in(heard, sender, secret):
    listener, _ = heard
    with pytest.raises(LostWorker, match=r"let us in|reset"):
        link_to(listener, sender, secret)


async def test_a_neighbour_has_few_streams(heard):
    listener, _ = heard
    links = [link_to(listener) for _ in range(MOST_STREAMS_OF_A_PEER)]
    with pytest.raises(LostWorker):
        link_to(listener)
    links.append(link_to(listener, "c"))
    links.pop(0).close()
    await until(lambda: len(listener._streams) == MOST_STREAMS_OF_A_PEER)
    links.append(link_to(listener))
    for each in links:
        each.close()


async def test_strangers_who_say_nothing_keep_nobody_out(heard):
    listener, pieces = heard
    silent = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(64)]
    link = link_to(listener)
    assert link.send(action(piece(np.zeros((1, 2), np.float32))))
    await until(lambda: len(pieces) == 1)
    link.close()
    for each in silent:
        each.close()


async def test_ten_thousand_mangled_packets_harm_nobody(heard):
    listener, pieces = heard
    good = link_to(listener, "good")
    rng = random.Random(7)
    packet = sent(piece(np.zeros(BOX.shape, np.float32), BOX))
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", listener.port)) as stream:
            stream.sendall(packets.greeting("evil", "s"))
            assert stream.recv(1) == packets.WELCOME
            try:
                for _ in range(100):
                    mangled = bytearray(packet)
                    for _ in range(rng.randrange(1, 8)):
                        mangled[rng.randrange(60)] = rng.randrange(256)
                    stream.sendall(mangled[: rng.randrange(1, len(mangled) + 1)])
            except OSError:
                pass  # it hung up on us, as it should
        await until(lambda: sum(each.sender == "evil" for each in listener._streams) == 0)
    before = [each for each in pieces if each.sender == "good"]
    assert before == []
    assert good.send(action(piece(np.ones((1, 2), np.float32))))
    await until(lambda: any(each.sender == "good" for each in pieces))
    good.close()


class NoDescriptors:
    """A listening socket that once has none left."""

    def __init__(self, real):
        self._real = real
        self.failed = 0

    def accept(self):
        if not self.failed:
            self.failed += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._real.accept()

    def __getattr__(self, name):
        return getattr(self._real, name)


async def test_a_listener_without_descriptors_accepts_again_when_there_are_some(heard):
    listener, pieces = heard
    exhausted = NoDescriptors(listener._socket)
    listener._socket, real = exhausted, listener._socket
    links = [link_to(listener), link_to(listener)]  # the thread waits in the first call already
    assert exhausted.failed == 1
    for link in links:
        assert link.send(action(piece(np.zeros((1, 2), np.float32))))
    await until(lambda: len(pieces) == 2)
    for link in links:
        link.close()
    listener._socket = real


async def test_a_stream_for_which_there_is_no_thread_is_closed(heard, monkeypatch):
    listener, pieces = heard

    def no_memory(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(listener._readers, "begin", no_memory)
    with pytest.raises(LostWorker):
        link_to(listener)
    monkeypatch.undo()
    link = link_to(listener)
    assert link.send(action(piece(np.zeros((1, 2), np.float32))))
    await until(lambda: len(pieces) == 1)
    link.close()
