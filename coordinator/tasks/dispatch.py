"""In which messages a step's tasks are described to devices: those that can begin come first.

A plan with exchanges places all tasks of a request at once, dozens for each device. If the host
described all of them before it sends anything, no device would begin before the last description.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import TypeVar

from coordinator.tasks.events import Action, Assign, Send
from protos.wire.facts import DeviceId

T = TypeVar("T")

# So many descriptions take about as long as one more message (`benchmarks.handover`).
MESSAGE_TASKS = 6
# Fewer for each device are not worth a message, although no device waits for that.
FEW_TASKS = 3


def dispatch(actions: Sequence[Action]) -> tuple[Sequence[Action], list[list[Assign]]]:
    """The actions to carry out at once; and assignments for whose inputs other devices have to
    compute first, each list for one device, to be described in this order.
    """
    fed = {(each.request, each.task) for each in actions if isinstance(each, Send)}
    later: dict[DeviceId, list[Assign]] = {}
    for each in actions:
        if isinstance(each, Assign) and (each.request, each.task) not in fed:
            later.setdefault(each.device, []).append(each)
    follow = in_parts(later.values())
    if not follow:
        return actions, []
    waiting = set(chain.from_iterable(follow))
    return [each for each in actions if not (isinstance(each, Assign) and each in waiting)], follow


def in_parts(later: Collection[Sequence[T]]) -> list[list[T]]:
    """What is described later, by device, in parts: to each device its next tasks, then to each all
    others. Empty if it is so little that it can be described with the first messages.
    """
    if sum(map(len, later)) <= FEW_TASKS * len(later):
        return []
    first = [tasks[:MESSAGE_TASKS] for tasks in later]
    others = [tasks[MESSAGE_TASKS:] for tasks in later]
    return [list(part) for part in (*first, *others) if part]
