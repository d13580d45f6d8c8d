"""Threads that read streams. Where what it has read gives a thread something to compute, it leaves
its stream to the threads that have nothing to do (leader and followers): one of them wakes up when
there is something to read.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from worker.peers.packets import PacketReader

# What a thread is to do next, for any time, while another reads its stream.
FollowUp = Callable[[], None]


@dataclass(slots=True, eq=False)
class PeerStream:
    """A connection; its sender, and what reads it, once that has greeted. `uncharged_bytes` are
    those of a message that is not complete.
    """

    socket: socket.socket
    sender: str = ""
    reader: PacketReader | None = None
    uncharged_bytes: int = 0
    was_left: bool = False


class Readers:
    """`read` reads a stream until it ends (None), or until that leads to work. There are as many
    threads as open streams, and one for each that works or has worked at the same time.
    """

    def __init__(self, read: Callable[[PeerStream], FollowUp | None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        # So many threads wait for a stream that no other thread has left to them.
        self._idle = 0
        # The streams that are left to them, by their descriptors.
        self._left: dict[int, PeerStream] = {}
        self._readable = select.epoll()
        self._closing = os.eventfd(0)
        self._readable.register(self._closing, select.EPOLLIN)
        self._is_open = True

    def begin(self, stream: PeerStream) -> None:
        """Starts a thread with a stream.

        Raises:
            RuntimeError: the system has no room for another thread.
        """
        thread = threading.Thread(
            target=self._attend, args=(stream,), name="data reader", daemon=True
        )
        with self._lock:
            thread.start()
            self._threads.add(thread)

    def close(self) -> None:
        """Waits for all threads; every stream has been made to end."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
        os.eventfd_write(self._closing, 1)
        while threads := self._running():
            for thread in threads:
                thread.join()
        self._readable.close()
        os.close(self._closing)

    def _running(self) -> list[threading.Thread]:
        with self._lock:
            return list(self._threads)

    def _attend(self, stream: PeerStream | None) -> None:
        try:
            while stream is not None and (work := self._read(stream)) is not None:
                is_left = self._leave(stream)
                work()
                del work  # tensors live no longer than their tasks
                if is_left:
                    stream = self._next()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _leave(self, stream: PeerStream) -> bool:
        """Whether another thread reads the stream from now on; not if none can be started. One
        that is idle is not woken for that, which would take longer than some kernels.
        """
        with self._lock:
            is_taken = self._idle > 0
            self._idle -= is_taken
        if not is_taken:
            try:
                self.begin(stream)
            except RuntimeError:
                return False
            return True
        events = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
        if stream.reader is not None and stream.reader.holds_more:
            events |= select.EPOLLOUT  # at once: the socket may have nothing to tell
        descriptor = stream.socket.fileno()
        self._left[descriptor] = stream
        if stream.was_left:
            self._readable.modify(descriptor, events)
        else:
            stream.was_left = True
            self._readable.register(descriptor, events)
        return True

    def _next(self) -> PeerStream | None:
        """A stream that is left to this thread and can be read; None if there will be none."""
        with self._lock:
            if not self._is_open:
                return None
            self._idle += 1
        while True:
            ((descriptor, _),) = self._readable.poll(maxevents=1)
            with self._lock:
                if descriptor == self._closing:
                    return self._left.popitem()[1] if self._left else None
                stream = self._left.pop(descriptor, None)
            if stream is not None:
                return stream
