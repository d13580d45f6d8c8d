"""The base of plans and groups: state that only events change.

No clock, I/O, asyncio or logging here. `plans.controller` hands events in and executes the
actions; tests do the same with their own clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import inf

from coordinator.plans.actions import Action
from coordinator.plans.events import Event


class ControlMachine(ABC):
    """Takes events and returns actions; irrelevant events change nothing."""

    def step(self, event: Event, now: float) -> list[Action]:
        """The actions that an event leads to, in order. `now` is a monotonic time in seconds. An
        event that is refused raises an `ImbrexError` and changes nothing.
        """
        return list(self._react(event, now))

    @property
    def due_s(self) -> float:
        """When a `Tick` is due, because something happens with time alone."""
        return inf

    @abstractmethod
    def _react(self, event: Event, now: float) -> Iterator[Action]:
        """Yields the actions in order."""
