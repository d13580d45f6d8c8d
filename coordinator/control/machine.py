"""What the parts of this room have in common: state that only events change.

There is no clock, no I/O, no asyncio and no logging here. `runtime.controller` hands the events in
and does what comes out; tests do the same with a clock of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import inf

from coordinator.control.actions import Action
from coordinator.control.events import Event


class Machine(ABC):
    """Takes events; an event that it has no use for changes nothing."""

    def step(self, event: Event, now: float) -> list[Action]:
        """What is to be done about an event, in order. `now` is of any monotonic clock. What is
        refused raises an `ImbrexError`, and changes nothing.
        """
        return list(self._react(event, now))

    @property
    def due_s(self) -> float:
        """When a `Tick` is due: something happens by itself then."""
        return inf

    @abstractmethod
    def _react(self, event: Event, now: float) -> Iterator[Action]:
        """The actions, one after the other."""
