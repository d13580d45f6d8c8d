"""Threads that read streams, and compute what these lead to while others read on."""

import socket
import threading
import time
from queue import SimpleQueue

import numpy as np
import pytest

from models.tensors.boxes import Box
from worker.peers.packets import PacketReader, packets
from worker.peers.readers import PeerStream, Readers
from worker.tasks.actions import TaskKey, TensorPiece

SECONDS = 10


class Fed(PeerStream):
    """A stream, and what is put into it: each item with a byte that says so."""

    def __init__(self):
        self.far_end, own = socket.socketpair()
        own.settimeout(SECONDS)
        super().__init__(own)
        self.items = SimpleQueue()

    def put(self, item):
        self.items.put(item)
        self.far_end.send(b"!")


@pytest.fixture
def readers():
    """A function is work, None the end; anything else is heard."""

    def read(stream):
        while stream.socket.recv(1):
            item = stream.items.get()
            if callable(item):
                return item
            if item is None:
                break
            heard.append((item, threading.get_ident()))
        stream.socket.close()
        stream.far_end.close()
        return None

    heard = []
    made = Readers(read)
    yield made, heard
    made.close()
    assert "data reader" not in {each.name for each in threading.enumerate()}


def test_stream_is_read_on_while_a_thread_works(readers):
    made, heard = readers
    stream, works, goes_on = Fed(), threading.Event(), threading.Event()
    made.begin(stream)
    stream.put("before")
    stream.put(lambda: (works.set(), goes_on.wait(SECONDS)))
    assert works.wait(SECONDS)
    stream.put("meanwhile")
    until_heard(heard, 2)
    (first, reader), (second, other) = heard
    assert (first, second) == ("before", "meanwhile")
    assert reader != other
    goes_on.set()
    stream.put(None)


def test_there_are_no_more_threads_than_streams_and_works_at_the_same_time(readers):
    made, heard = readers
    streams = [Fed() for _ in range(3)]
    for stream in streams:
        made.begin(stream)
    for number in range(60):
        done = threading.Event()
        streams[number % 3].put(done.set)
        assert done.wait(SECONDS)
        streams[number % 3].put(number)
        until_heard(heard, number + 1)
    assert [item for item, _ in heard] == list(range(60))
    # One more than streams works; while it returns from that, one more may have begun.
    assert len({thread for _, thread in heard}) <= len(streams) + 2
    for stream in streams:
        stream.put(None)


def test_closing_waits_for_work(readers):
    made, _ = readers
    stream, works, ended = Fed(), threading.Event(), []

    def work():
        works.set()
        time.sleep(0.2)
        ended.append(True)

    made.begin(stream)
    stream.put(work)
    assert works.wait(SECONDS)
    stream.put(None)
    made.close()
    assert ended


def until_heard(heard, count):
    deadline = time.monotonic() + SECONDS
    while len(heard) < count and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(heard) >= count


def test_a_thread_without_another_reads_on_after_its_work(readers, monkeypatch):
    """As where the process may have no more memory, which a thread's stack takes."""
    made, heard = readers
    stream, done = Fed(), threading.Event()
    made.begin(stream)

    def no_memory(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_memory)
    stream.put(done.set)
    stream.put("after")
    until_heard(heard, 1)
    assert done.is_set()
    assert heard[0][0] == "after"
    monkeypatch.undo()
    stream.put(None)


def test_a_stream_that_is_left_ends_with_its_readers(readers):
    made, heard = readers
    stream = Fed()
    made.begin(stream)
    for number in range(2):  # the second time, a thread is idle
        done = threading.Event()
        stream.put(done.set)
        assert done.wait(SECONDS)
        stream.put(number)
        until_heard(heard, number + 1)
    stream.far_end.shutdown(socket.SHUT_RDWR)
    made.close()


def test_packets_read_ahead_are_taken_by_an_idle_thread():
    """No more bytes come that would wake it."""
    far_end, own = socket.socketpair()
    stream = PeerStream(own, "peer", PacketReader(own, "peer"))
    works, goes_on, heard = threading.Event(), threading.Event(), []

    def read(stream):
        while (packet := stream.reader.next()) is not None:
            heard.append(packet[0].key.task)
            if heard[-1] % 2 == 0:
                return lambda: (works.set(), goes_on.wait(SECONDS))
        own.close()
        return None

    made = Readers(read)
    made.begin(stream)
    box = Box.whole((1, 4))
    pieces = [
        TensorPiece(TaskKey("r", 1, number, 0), "x", box, np.zeros((1, 4), np.float32))
        for number in range(4)
    ]
    sent = [b"".join(map(bytes, packets((piece,)))) for piece in pieces]
    far_end.sendall(b"".join(sent[:2]))
    assert works.wait(SECONDS)
    until_heard(heard, 2)
    goes_on.set()
    # Now there is an idle thread.
    works.clear()
    goes_on.clear()
    far_end.sendall(b"".join(sent[2:]))
    assert works.wait(SECONDS)
    until_heard(heard, 4)
    goes_on.set()
    far_end.close()
    made.close()
    assert heard == [0, 1, 2, 3]
