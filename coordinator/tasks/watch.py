"""Who is overdue: what is expected of attempts and requests, against when they were heard of."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.tasks.deadlines import SLACK_S, Expectations, give_up_s, patience_s
from coordinator.tasks.plan import DeviceId
from coordinator.tasks.runs import Attempt, RequestRun, TaskRun


@dataclass(frozen=True, slots=True)
class Delay:
    """How long nothing was heard of an attempt that is overdue, and how long it should take."""

    silent_s: float
    expected_s: float

    @property
    def is_hopeless(self) -> bool:
        """Whether even the last attempt at a task is not worth waiting for."""
        return self.silent_s > give_up_s(self.expected_s)


class Watch:
    """When each device last gave a result of any task: `heard_s`."""

    def __init__(self, expected: Expectations) -> None:
        self.heard_s: dict[DeviceId, float] = {}
        self._expected = expected

    def heard(self, run: RequestRun, attempt: Attempt, now: float) -> None:
        """A result, or news of one, came for an attempt."""
        self.heard_s[attempt.device] = run.progress_s = now

    def delay(self, run: RequestRun, task: TaskRun, attempt: Attempt, now: float) -> Delay | None:
        """By how much an attempt is overdue, if it is."""
        silent_s = now - max(attempt.since_s, self.heard_s.get(attempt.device, 0.0))
        if silent_s < SLACK_S or not (attempt.resent or task.is_fed(attempt)):
            return None
        index = task.spec.id
        expected_s = self._expected.task_s(run.graph, index, attempt.device)
        if not attempt.delivered:
            expected_s += self._expected.prepare_s(run.graph, index, attempt.device)
        return Delay(silent_s, expected_s) if silent_s > patience_s(expected_s) else None

    def is_stuck(self, run: RequestRun, in_flight: int, now: float) -> bool:
        """Whether a request whose tasks wait for each other has shown no sign of life for too
        long, with so many requests on the devices.
        """
        preparing = (
            self._expected.prepare_s(run.graph, task.spec.id, attempt.device)
            for task in run.tasks
            for attempt in task.attempts.values()
            if not attempt.delivered
        )
        expected_s = run.graph.plan.predicted_latency_s * in_flight
        return now - run.progress_s > patience_s(max(preparing, default=0.0) + expected_s)
