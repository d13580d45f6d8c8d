"""Which tasks are checked. Pure: random numbers are passed in, and no clock is read.

Per device, a counter of tasks runs up to a random number, so that no device can know which task is
next. It is drawn uniformly for each check, from a range whose end leaves some tasks for waiting: no
device computes twice `every` tasks unchecked. A device that is new, or was accused, is checked ten
times as often for a while.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from protos.wire.facts import DeviceId

# The end of the range, in units of `every`. A check waits for the next request, the evidence and
# the arbiter: with much other work, for 60 tasks.
MOST = 1.5
# A new device's first checks: how many, and how much more often.
YOUNG_CHECKS = 10
YOUNG_SHARE = 10
# Four times the devices of a cluster: ids can be forged, so the table is capped.
MOST_DEVICES = 256


@dataclass(slots=True)
class _Count:
    """Tasks `since` the last check; the next is due at `due`. `young` checks are still to come more
    often. Of `tasks` in total, `checked` were computed again, and `wrong` of these were wrong.
    """

    due: int
    since: int = 0
    young: int = YOUNG_CHECKS
    tasks: int = 0
    checked: int = 0
    wrong: int = 0


class AuditSampling:
    """One counter per device."""

    def __init__(self, every: int, chance: Random) -> None:
        self._every = every
        self._chance = chance
        self._counts: OrderedDict[DeviceId, _Count] = OrderedDict()

    def ran(self, tasks: Mapping[DeviceId, int]) -> list[DeviceId]:
        """Counts tasks of devices; returns the devices that are due for a check, the most overdue
        first.
        """
        overdue: dict[DeviceId, int] = {}
        for device, number in tasks.items():
            count = self._count(device)
            count.since += number
            count.tasks += number
            if count.since >= count.due:
                overdue[device] = count.since - count.due
        return sorted(overdue, key=overdue.__getitem__, reverse=True)

    def chosen(self, device: DeviceId) -> None:
        """A task of the device was chosen: its counter starts again."""
        count = self._count(device)
        count.young = max(0, count.young - 1)
        count.since, count.due = 0, self._next(count.young)

    def again(self, device: DeviceId) -> None:
        """The check gave no verdict: the device is still due."""
        count = self._count(device)
        count.since = count.due

    def judged(self, device: DeviceId, *, wrong: bool) -> None:
        """A task of the device was computed again."""
        count = self._count(device)
        count.checked += 1
        count.wrong += wrong

    def tally(self, device: DeviceId) -> tuple[int, int, int]:
        """The numbers of tasks that a device has computed, that were computed again, and that were
        wrong.
        """
        count = self._counts.get(device)
        return (count.tasks, count.checked, count.wrong) if count else (0, 0, 0)

    def suspected(self, device: DeviceId) -> None:
        """The device was accused of a wrong result: it is checked more often for a while."""
        count = self._count(device)
        count.young = YOUNG_CHECKS
        count.due = min(count.due, count.since + self._next(count.young))

    def _count(self, device: DeviceId) -> _Count:
        count = self._counts.pop(device, None)
        if count is None:
            count = _Count(self._next(YOUNG_CHECKS))
            if len(self._counts) >= MOST_DEVICES:
                self._counts.popitem(last=False)
        self._counts[device] = count
        return count

    def _next(self, young: int) -> int:
        every = self._every / YOUNG_SHARE if young else self._every
        return self._chance.randint(1, max(1, int(MOST * every)))
