"""Frames from a source: the newest is sent first, and old ones are dropped."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Frame:
    """A picture of a source; `taken_s` is in wall-clock time. `read` returns its file's bytes, and
    is called only for frames that are sent.

    `read` raises BadRequest or NotFound if the picture is gone.
    """

    number: int
    name: str
    taken_s: float
    read: Callable[[], bytes] = field(repr=False, compare=False)


class FrameSource(Protocol):
    """A source of frames."""

    @property
    def name(self) -> str:
        """The display name."""

    @property
    def keeps(self) -> int:
        """The number of its frames that may be queued."""

    def run(self, put: Callable[[Frame], None], stopped: threading.Event) -> None:
        """Yields frames until it ends or `stopped` is set.

        Raises:
            ImbrexError: it cannot be opened, or reopened.
        """


class Waiting:
    """Queued frames: at most `keeps`, the oldest are dropped."""

    def __init__(self, keeps: int) -> None:
        self._frames: deque[Frame] = deque()
        self._keeps = keeps
        self._changed = threading.Condition()
        self._closed = False
        self.dropped = 0

    def put(self, frame: Frame) -> None:
        """Adds a frame, newer than those before."""
        with self._changed:
            self._frames.append(frame)
            if len(self._frames) > self._keeps:
                self._frames.popleft()
                self.dropped += 1
            self._changed.notify()

    def take(self) -> Frame | None:
        """Waits for and removes the newest frame; None when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._closed)
            return self._frames.pop() if self._frames else None

    def close(self, *, at_once: bool = False) -> None:
        """Ends the queue; with `at_once`, queued frames are dropped."""
        with self._changed:
            self._closed = True
            if at_once:
                self._frames.clear()
            self._changed.notify_all()
