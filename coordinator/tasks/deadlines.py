"""How long an attempt may take before another device also tries the task.

The time of an attempt runs from when the device last received data for it, or last returned a
result of any task: a device that works through its queue is not late. The limits are generous,
since a second attempt costs another device's time, and a missed one only delays a request.
`OverdueWatch` compares expected times with the last signs of life.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from coordinator.tasks.runs import Attempt, RequestRun, TaskRun
from coordinator.tasks.task_graph import TaskGraph
from protos.wire.facts import DeviceId

# Predictions err by tens of percent and throttling halves speed; three times the time is a fault.
HEDGE_FACTOR = 3.0
# Shorter delays come from event loops and the network, whatever was predicted.
SLACK_S = 0.5
# Devices that may try a task at the same time: enough to survive two that hang.
MOST_AT_ONCE = 3
# A device that may only be slow gets this long if no other is left to try.
GIVE_UP_FACTOR = 20.0
GIVE_UP_S = 60.0


class Expectations:
    """Predictions for tasks, from present knowledge; here none: nothing is ever overdue."""

    def task_s(self, graph: TaskGraph, task: int, device: DeviceId) -> float:
        """Seconds from sending a task's inputs to an idle device until its outputs are back."""
        del graph, task, device
        return math.inf

    def prepare_s(self, graph: TaskGraph, task: int, device: DeviceId) -> float:
        """Seconds until the device can run the task's program; 0 if it can."""
        del graph, task, device
        return 0.0

    def has_room(self, graph: TaskGraph, task: int, device: DeviceId) -> bool:
        """Whether the device can prepare and hold the task's program beside its own."""
        del graph, task, device
        return True

    def takes(self, graph: TaskGraph, device: DeviceId) -> bool:
        """Whether the device's limits allow the tasks of this plan."""
        del graph, device
        return True


def patience_s(expected_s: float) -> float:
    """How long to wait for something that should take `expected_s` before trying elsewhere."""
    return SLACK_S + HEDGE_FACTOR * expected_s


def give_up_s(expected_s: float) -> float:
    """How long to wait for the last attempt at something."""
    return GIVE_UP_S + GIVE_UP_FACTOR * expected_s


@dataclass(frozen=True, slots=True)
class Delay:
    """How long an overdue attempt has been silent, and how long it should have taken."""

    silent_s: float
    expected_s: float

    @property
    def is_hopeless(self) -> bool:
        """Whether to give up even the last attempt at a task."""
        return self.silent_s > give_up_s(self.expected_s)


class OverdueWatch:
    """What is overdue, given when each device last returned a result, or part of one, of any task
    (`heard_s`).
    """

    def __init__(self, expected: Expectations) -> None:
        self.heard_s: dict[DeviceId, float] = {}
        self._expected = expected

    def delay(self, run: RequestRun, task: TaskRun, attempt: Attempt, now: float) -> Delay | None:
        """How overdue an attempt is; None if it is not."""
        silent_s = now - max(attempt.since_s, self.heard_s.get(attempt.device, 0.0))
        if silent_s < SLACK_S or not (attempt.resent or task.is_fed(attempt)):
            return None
        index = task.spec.id
        expected_s = self._expected.task_s(run.graph, index, attempt.device)
        if not attempt.delivered:
            expected_s += self._expected.prepare_s(run.graph, index, attempt.device)
        return Delay(silent_s, expected_s) if silent_s > patience_s(expected_s) else None

    def is_stuck(self, run: RequestRun, in_flight: int, now: float) -> bool:
        """Whether a request whose tasks wait for each other has been silent for too long, given the
        number of requests in flight.
        """
        preparing = (
            self._expected.prepare_s(run.graph, task.spec.id, attempt.device)
            for task in run.tasks
            for attempt in task.attempts.values()
            if not attempt.delivered
        )
        expected_s = run.graph.plan.predicted_latency_s * in_flight
        return now - run.progress_s > patience_s(max(preparing, default=0.0) + expected_s)
