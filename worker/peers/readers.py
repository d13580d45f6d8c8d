"""Threads that read streams. Where what it has read gives a thread something to compute, it passes
its stream on to a thread that has none (leader and followers).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

S = TypeVar("S")

# What a thread is to do next, for any time, while another reads its stream.
FollowUp = Callable[[], None]


class Readers(Generic[S]):
    """`read` reads a stream until it ends (None), or until that leads to work. There are as many
    threads as open streams, and one for each that works or has worked at the same time.
    """

    def __init__(self, read: Callable[[S], FollowUp | None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        # So many threads wait for a stream.
        self._idle = 0
        self._passed_on: SimpleQueue[S | None] = SimpleQueue()
        self._is_open = True

    def begin(self, stream: S) -> None:
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
            self._is_open = False
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._passed_on.put(None)
        while threads := self._running():
            for thread in threads:
                thread.join()

    def _running(self) -> list[threading.Thread]:
        with self._lock:
            return list(self._threads)

    def _attend(self, stream: S | None) -> None:
        try:
            while stream is not None and (work := self._read(stream)) is not None:
                is_passed_on = self._pass_on(stream)
                work()
                del work  # tensors live no longer than their tasks
                if is_passed_on:
                    stream = self._next()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _pass_on(self, stream: S) -> bool:
        """Whether another thread reads the stream now; not if none can be started."""
        with self._lock:
            is_taken = self._idle > 0
            self._idle -= is_taken
        if is_taken:
            self._passed_on.put(stream)
            return True
        try:
            self.begin(stream)
        except RuntimeError:
            return False
        return True

    def _next(self) -> S | None:
        """A stream that is passed on; None if there will be none."""
        with self._lock:
            if not self._is_open:
                return None
            self._idle += 1
        return self._passed_on.get()
