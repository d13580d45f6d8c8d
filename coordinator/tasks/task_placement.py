"""Where a task runs if the planned device cannot, or can no longer, run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from coordinator.tasks.deadlines import Expectations
from coordinator.tasks.runs import RequestRun, TaskRun
from protos.wire.facts import DeviceId


def place(
    run: RequestRun,
    task: TaskRun,
    devices: Collection[DeviceId],
    requests: Collection[RequestRun],
    expected: Expectations,
) -> DeviceId | None:
    """The planned device if it is one of `devices`; otherwise, among those where the task failed
    least often, the one that would be ready first. None if all of them are already trying, or have
    no room for the program while another one tries. `requests` are all in flight. A suspect gets
    one device that computes for nobody else, and others avoid it if they can.
    """
    devices = _apart(run, devices, requests)
    planned = task.spec.device
    if not task.attempts and not task.failures and planned in devices:
        return planned
    trying = {attempt.device for attempt in task.attempts.values()}
    free = [
        each
        for each in devices
        if each not in trying and (not trying or expected.has_room(run.graph, task.spec.id, each))
    ]
    if planned in free and not task.failures:
        return planned
    backlog = _Backlog(requests, expected)

    def rank(device: DeviceId) -> tuple[int, bool, bool, float, int]:
        ready_s = expected.prepare_s(run.graph, task.spec.id, device)
        ready_s += expected.task_s(run.graph, task.spec.id, device)
        seconds = backlog.seconds.get(device, 0.0) + ready_s
        # Beyond its limits a device computes with onnxruntime: better than losing the request.
        beyond = not expected.takes(run.graph, device)
        return task.failures[device], beyond, device != planned, seconds, backlog.attempts[device]

    return min(free, key=rank, default=None)


def _apart(
    run: RequestRun, devices: Collection[DeviceId], requests: Collection[RequestRun]
) -> Collection[DeviceId]:
    others = [each for each in requests if each is not run and (run.is_suspect or each.is_suspect)]
    if run.is_suspect:
        own, used = run.computing, {device for each in others for device in each.occupied}
        return [each for each in devices if each not in used and (not own or each in own)]
    avoided = {device for each in others for device in each.occupied}
    return [each for each in devices if each not in avoided] or devices if avoided else devices


class _Backlog:
    """The work that devices have: predicted seconds, and the number of attempts."""

    def __init__(self, requests: Iterable[RequestRun], expected: Expectations) -> None:
        self.attempts: Counter[DeviceId] = Counter()
        self.seconds: dict[DeviceId, float] = {}
        for run in requests:
            for task in run.tasks:
                for attempt in task.attempts.values():
                    task_s = expected.task_s(run.graph, task.spec.id, attempt.device)
                    self.seconds[attempt.device] = self.seconds.get(attempt.device, 0.0) + task_s
                    self.attempts[attempt.device] += 1
