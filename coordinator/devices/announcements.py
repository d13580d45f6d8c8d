"""What the coordinator's parts announce to each other: first in, first out.

Who announces something does not know who hears of it, and hears nothing back. `Coordinator` says in
one place who does. Nobody is called while a method that holds announcements runs.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from protos.wire.facts import DeviceId

T = TypeVar("T")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DevicesChanged:
    """Devices may or may not be used now, or their speeds were measured."""

    cause: str


@dataclass(frozen=True, slots=True)
class DeviceJoined:
    """A device is connected, for the first time or again."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class DeviceLeft:
    """A device is no longer connected. Nothing had come from it for `silent_s` seconds."""

    device: DeviceId
    address: str
    reason: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class EngineSwitched:
    """A connected device computes with another engine, and has compared it with onnxruntime."""

    device: DeviceId


class Announcements:
    """The list of what has been announced and not been heard yet."""

    def __init__(self) -> None:
        self._listeners: defaultdict[type, list[Callable[[Any], None]]] = defaultdict(list)
        self._waiting: deque[object] = deque()
        self._holding = 0

    def on(self, kind: type[T], listener: Callable[[T], None]) -> None:
        """Calls `listener` for each announcement of this kind, after those who were named before
        it.
        """
        self._listeners[kind].append(listener)

    def announce(self, news: object) -> None:
        """Tells the listeners now, or after what is held and what was announced before."""
        self._waiting.append(news)
        with self.held():
            pass

    @contextmanager
    def held(self) -> Iterator[None]:
        """Announcements wait until the outermost of these contexts has ended."""
        self._holding += 1
        try:
            yield
        finally:
            try:
                while self._holding == 1 and self._waiting:
                    self._tell(self._waiting.popleft())
            finally:
                self._holding -= 1

    def _tell(self, news: object) -> None:
        for listener in self._listeners[type(news)]:
            try:
                listener(news)
            except Exception:
                log.exception("what was announced could not be followed", announced=repr(news))
