"""What must be done again when devices can no longer pass boxes to each other.

Going back from the network's outputs: what the host holds is not needed again; what a device still
keeps is sent to the host; everything else is computed again from its inputs. So a request goes on
from the latest boundary whose boxes survive, at worst from the image.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.tasks.events import Action, Cancel, RequestId, Resend
from coordinator.tasks.runs import RequestRun, RunPhase, TaskRun


def recover(request: RequestId, run: RequestRun, now: float) -> Iterator[Action]:
    """Ends all exchange between peers: attempts that wait for peers are given up, and kept outputs
    are requested from devices. Afterwards every task can be advanced.
    """
    if run.direct:
        run.direct = False
        for task in run.tasks:
            for attempt in list(task.attempts.values()):
                yield Cancel(request, task.spec.id, attempt.number, attempt.device)
                run.cancelled[attempt.device] = now
                task.give_up(attempt)
    for task in survivors(run):
        kept = task.resend(now)
        missing = tuple(o.tensor for o in task.spec.outputs if o.tensor not in task.held)
        yield Resend(request, task.spec.id, kept.number, kept.device, missing)


def survivors(run: RequestRun) -> list[TaskRun]:
    """Tasks whose outputs a device keeps and the host needs. Afterwards, other tasks that must run
    are waiting or running, and those that are not needed are done.
    """
    needed: set[int] = set()
    kept: list[TaskRun] = []
    ahead = [task for task, tensor in run.graph.ends if tensor not in run.tasks[task].held]
    while ahead:
        index = ahead.pop()
        task = run.tasks[index]
        if index in needed or task.is_at_host:
            continue
        needed.add(index)
        if task.phase is RunPhase.DONE and task.kept is not None:
            kept.append(task)
            continue
        if task.phase is RunPhase.DONE:
            task.phase = RunPhase.WAITING
        if not any(attempt.resent for attempt in task.attempts.values()):
            ahead += {
                piece.source
                for entry in task.spec.inputs
                for piece in entry.pieces
                if piece.source is not None
            }
    for task in run.tasks:
        if task.spec.id not in needed and task.phase is RunPhase.WAITING:
            task.phase = RunPhase.DONE
    return sorted(kept, key=lambda task: task.spec.id)
