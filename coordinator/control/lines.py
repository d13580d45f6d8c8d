"""Who of those that wait goes to which group: pure, so that it can be seen deciding.

Every waiting request is given, in order of arrival, to the group that would answer it first,
counting what that group does already. It starts if that group has room, and waits if not: a slow
device is used when the fast ones are so busy that it answers sooner, and only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from coordinator.planning.groups import Service
from coordinator.tasks.graph import TaskGraph


@dataclass(slots=True, eq=False)
class Group:
    """Devices that answer whole images by one plan, and how many they are at."""

    graph: TaskGraph
    service: Service
    in_flight: int = 0

    @property
    def room(self) -> int:
        """How many more images keep its busiest device busy; one is on its way meanwhile."""
        most = ceil(self.service.latency_s / self.service.period_s) + 1
        return max(0, most - self.in_flight)


def starts(groups: Sequence[Group], waiting: int) -> list[tuple[int, Group]]:
    """Positions in the queue that start now, and on what group."""
    given = [group.in_flight for group in groups]
    room = [group.room for group in groups]
    found: list[tuple[int, Group]] = []
    for position in range(waiting):
        soonest = min(
            range(len(groups)),
            key=lambda i: groups[i].service.latency_s + given[i] * groups[i].service.period_s,
        )
        given[soonest] += 1
        if room[soonest]:
            room[soonest] -= 1
            found.append((position, groups[soonest]))
    return found
