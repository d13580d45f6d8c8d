"""How long an attempt may take before another device tries too.

An attempt's clock runs from when the device last got something of it, or last was heard of with a
result of any task: a device that works through its queue is not late. The limits are generous,
since a hedge costs another device's time, and a missed one only waits a little longer.
"""

from __future__ import annotations

import math
from typing import Protocol

from coordinator.tasks.graph import TaskGraph
from coordinator.tasks.plan import DeviceId

# Predictions err by tens of percent and devices throttle to a half; three times as long is odd.
HEDGE_FACTOR = 3.0
# Shorter delays are the event loops' and the network's, whatever was predicted.
SLACK_S = 0.5
# Devices that try one task at the same time: two that hang need not be waited for.
MOST_AT_ONCE = 3
# Where no device is left to try, one that is only slow gets this long.
GIVE_UP_FACTOR = 20.0
GIVE_UP_S = 60.0


class Expectations(Protocol):
    """What is predicted of tasks, by what is known now."""

    def task_s(self, graph: TaskGraph, task: int, device: DeviceId) -> float:
        """Seconds from sending a task's inputs to an idle device until its outputs are back."""
        ...

    def prepare_s(self, graph: TaskGraph, task: int, device: DeviceId) -> float:
        """Seconds until the device can run the task's program; 0 if it can."""
        ...


class NoExpectations:
    """Nothing is predicted: nothing is ever overdue."""

    def task_s(self, graph: TaskGraph, task: int, device: DeviceId) -> float:
        """Any time."""
        del graph, task, device
        return math.inf

    def prepare_s(self, graph: TaskGraph, task: int, device: DeviceId) -> float:
        """None."""
        del graph, task, device
        return 0.0


def patience_s(expected_s: float) -> float:
    """How long something that was expected to take `expected_s` is waited for alone."""
    return SLACK_S + HEDGE_FACTOR * expected_s


def give_up_s(expected_s: float) -> float:
    """How long the last attempt at something is waited for."""
    return GIVE_UP_S + GIVE_UP_FACTOR * expected_s
