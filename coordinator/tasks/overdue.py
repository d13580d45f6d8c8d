"""What is overdue: expected times of attempts and requests, against their last signs of life."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.tasks.deadlines import SLACK_S, Expectations, give_up_s, patience_s
from coordinator.tasks.runs import Attempt, RequestRun, TaskRun
from protos.wire.facts import DeviceId


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
    """Tracks when each device last returned a result of any task (`heard_s`)."""

    def __init__(self, expected: Expectations) -> None:
        self.heard_s: dict[DeviceId, float] = {}
        self._expected = expected

    def heard(self, run: RequestRun, attempt: Attempt, now: float) -> None:
        """A result, or part of one, came from an attempt."""
        self.heard_s[attempt.device] = run.progress_s = now

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
