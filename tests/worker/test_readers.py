"""Threads that read streams, and compute what these lead to while others read on."""

import threading
import time
from queue import SimpleQueue

import pytest

from worker.peers.readers import Readers

SECONDS = 10


@pytest.fixture
def readers():
    """Streams are queues: None ends one, a function is work."""

    def read(stream):
        while callable(item := stream.get(timeout=SECONDS)) is False and item is not None:
            heard.append((item, threading.get_ident()))
        return item

    heard = []
    made = Readers(read)
    yield made, heard
    made.close()
    assert "data reader" not in {each.name for each in threading.enumerate()}


def test_another_thread_reads_on_while_one_works(readers):
    made, heard = readers
    stream, works, goes_on = SimpleQueue(), threading.Event(), threading.Event()
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
    streams = [SimpleQueue() for _ in range(3)]
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
    stream, works, ended = SimpleQueue(), threading.Event(), []

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
    stream, done = SimpleQueue(), threading.Event()
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
