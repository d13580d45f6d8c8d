"""Whether received data can be a task's result, judged by its box and values."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakSet

from coordinator.tasks.events import Received
from coordinator.tasks.runs import Attempt, RequestRun, TaskRun
from coordinator.tasks.task_graph import TaskGraph
from protos.wire.facts import DeviceId


@dataclass(frozen=True, slots=True)
class Objection:
    """Why something is refused; `proven`: no later result can show that it was right."""

    cause: str
    proven: bool


class Judge:
    """Remembers the graphs that yield values that are not finite by themselves."""

    def __init__(self) -> None:
        self._unusual: WeakSet[TaskGraph] = WeakSet()

    def is_unusual(self, graph: TaskGraph, *, finite: bool) -> bool:
        """Whether values that are not finite are to be expected, given whether the input was
        `finite`.
        """
        return not finite or graph in self._unusual

    def objection(
        self, run: RequestRun, task: TaskRun, attempt: Attempt, came: Received
    ) -> Objection | None:
        """Why it cannot be part of the task's result; None if it can."""
        box, before = came.box, attempt.merged.get(came.tensor, ())
        whole = next((o.box for o in task.spec.outputs if o.tensor == came.tensor), None)
        is_part = whole is not None and len(box) == len(whole) and whole.contains(box)
        if not is_part or box.is_empty or not all(box.intersect(each).is_empty for each in before):
            cause = f"it sent {came.box} of {came.tensor!r}, which was not requested"
            return Objection(cause, proven=True)
        if not came.finite and not self._believes(run, task, attempt.device):
            return Objection(f"it sent values of {came.tensor!r} that are not finite", proven=False)
        return None

    def _believes(self, run: RequestRun, task: TaskRun, device: DeviceId) -> bool:
        """Whether the model itself yields values that are not finite: two attempts agree on
        them.
        """
        if not run.unusual:
            task.doubted.append(device)
        if len(task.doubted) > 1:
            run.unusual = True
            self._unusual.add(run.graph)
        return run.unusual
