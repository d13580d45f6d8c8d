"""Which group of devices each waiting request goes to: a pure function.

Every waiting request is given, in order of arrival, to the group that would answer it first,
including the work that the group already has. It starts if that group has room, and waits
otherwise: a slow device is used only if the fast ones are so busy that it answers sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from coordinator.planning.groups import ServiceTimes
from coordinator.tasks.task_graph import TaskGraph


@dataclass(slots=True, eq=False)
class DeviceGroup:
    """Devices that answer whole images by one plan, and the images that they have in flight."""

    graph: TaskGraph
    service: ServiceTimes
    in_flight: int = 0

    @property
    def room(self) -> int:
        """Images that it can take now: enough to keep its busiest device busy, and one in
        transit.
        """
        most = ceil(self.service.latency_s / self.service.period_s) + 1
        return max(0, most - self.in_flight)


def starts(groups: Sequence[DeviceGroup], waiting: int) -> list[tuple[int, DeviceGroup]]:
    """Positions in the queue that start now, each with its group."""
    given = [group.in_flight for group in groups]
    room = [group.room for group in groups]
    found: list[tuple[int, DeviceGroup]] = []
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
