"""Where a task runs when it can't, or can no longer, run where it was planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from coordinator.tasks.deadlines import Expectations
from coordinator.tasks.plan import DeviceId
from coordinator.tasks.runs import RequestRun, TaskRun


def place(
    run: RequestRun,
    task: TaskRun,
    devices: Collection[DeviceId],
    requests: Iterable[RequestRun],
    expected: Expectations,
) -> DeviceId | None:
    """The planned device if it is one of `devices`; else the one that would be ready first, of
    those on which the task failed least. None where all are trying. `requests` are all in flight.
    """
    planned = task.spec.device
    if not task.attempts and not task.failures and planned in devices:
        return planned
    trying = {attempt.device for attempt in task.attempts.values()}
    free = [each for each in devices if each not in trying]
    if planned in free and not task.failures:
        return planned
    backlog = _Backlog(requests, expected)

    def rank(device: DeviceId) -> tuple[int, bool, float, int]:
        ready_s = expected.prepare_s(run.graph, task.spec.id, device)
        ready_s += expected.task_s(run.graph, task.spec.id, device)
        seconds = backlog.seconds.get(device, 0.0) + ready_s
        return task.failures[device], device != planned, seconds, backlog.attempts[device]

    return min(free, key=rank, default=None)


class _Backlog:
    """What devices have to do: predicted seconds, and how many attempts."""

    def __init__(self, requests: Iterable[RequestRun], expected: Expectations) -> None:
        self.attempts: Counter[DeviceId] = Counter()
        self.seconds: dict[DeviceId, float] = {}
        for run in requests:
            for task in run.tasks:
                for attempt in task.attempts.values():
                    task_s = expected.task_s(run.graph, task.spec.id, attempt.device)
                    self.seconds[attempt.device] = self.seconds.get(attempt.device, 0.0) + task_s
                    self.attempts[attempt.device] += 1
