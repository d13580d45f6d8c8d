"""Frames on their way from a source: the newest is asked about first, and too old ones go."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Frame:
    """A picture of a source; `taken_s` is the wall clock's. `read` gives its file's bytes, and is
    called only for frames that are asked about.

    `read` raises BadRequest or NotFound where there is no picture any more.
    """

    number: int
    name: str
    taken_s: float
    read: Callable[[], bytes] = field(repr=False, compare=False)


class Source(Protocol):
    """Something that gives frames."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def keeps(self) -> int:
        """How many of its frames may wait."""

    def run(self, put: Callable[[Frame], None], stopped: threading.Event) -> None:
        """Gives frames until it ends or `stopped` is set.

        Raises:
            ImbrexError: it cannot be opened, or not any more.
        """


class Waiting:
    """Frames that nobody has taken yet: at most `keeps`, the oldest go."""

    def __init__(self, keeps: int) -> None:
        self._frames: deque[Frame] = deque()
        self._keeps = keeps
        self._changed = threading.Condition()
        self._closed = False
        self.dropped = 0

    def put(self, frame: Frame) -> None:
        """Another one, newer than those before."""
        with self._changed:
            self._frames.append(frame)
            if len(self._frames) > self._keeps:
                self._frames.popleft()
                self.dropped += 1
            self._changed.notify()

    def take(self) -> Frame | None:
        """The newest, when there is one; None when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._closed)
            return self._frames.pop() if self._frames else None

    def close(self, *, at_once: bool = False) -> None:
        """No more will come; `at_once`: and what waits is left."""
        with self._changed:
            self._closed = True
            if at_once:
                self._frames.clear()
            self._changed.notify_all()
