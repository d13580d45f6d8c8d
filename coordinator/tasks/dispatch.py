"""In which messages a step's tasks are described to devices: those that can begin come first.

A plan with exchanges places all tasks of a request at once, dozens for each device. If the host
described all of them before it sends anything, no device would begin before the last description.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

from coordinator.tasks.events import Action, Assign, Send
from protos.facts import DeviceId

T = TypeVar("T")

# So many descriptions take about as long as one more message (`benchmarks.handover`).
MESSAGE_TASKS = 6


def dispatch(actions: Sequence[Action]) -> tuple[Sequence[Action], list[list[Assign]]]:
    """The actions to carry out at once; and assignments for whose inputs other devices have to
    compute first, each list for one device, to be described in this order.
    """
    fed = {(each.request, each.task) for each in actions if isinstance(each, Send)}
    now: list[Action] = []
    later: dict[DeviceId, list[Assign]] = {}
    for each in actions:
        if isinstance(each, Assign) and (each.request, each.task) not in fed:
            later.setdefault(each.device, []).append(each)
        else:
            now.append(each)
    follow = in_parts(later.values())
    return (now, follow) if follow else (actions, [])


def in_parts(later: Collection[Sequence[T]]) -> list[list[T]]:
    """What is described later, by device, in parts: of each device the first tasks, then more of
    each. Empty if it is so little that it can be described with the first messages.
    """
    if sum(map(len, later)) <= MESSAGE_TASKS * len(later):
        return []
    rounds = zip_longest(*map(_parts, later))
    return [part for parts in rounds for part in parts if part is not None]


def _parts(tasks: Sequence[T]) -> Iterator[list[T]]:
    """Parts of growing size, so that the first ones arrive early in few messages."""
    start, size = 0, MESSAGE_TASKS
    while start < len(tasks):
        stop = start + size if len(tasks) - start >= 2 * size else len(tasks)
        yield list(tasks[start:stop])
        start, size = stop, 2 * size
