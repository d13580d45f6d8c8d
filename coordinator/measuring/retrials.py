"""When a device that no request uses is measured again. Pure: it takes `now`.

A device that was slow (heat, another program, a disturbed link) is left out of plans, and then
nothing shows that it is fast again. So it gets a trial after a minute without work, and after twice
as long each time that it is left out again.
"""

from collections.abc import Collection, Set
from dataclasses import dataclass

from protos.wire.facts import DeviceId

FIRST_S = 60.0
LAST_S = 3600.0
# After so much time since its last trial, a device that is used again begins anew.
PROBATION_S = 600.0


@dataclass(slots=True)
class _Wait:
    """A device without work `since_s`; None while it is used."""

    wait_s: float
    since_s: float | None = None
    tried_s: float = 0.0


class Retrials:
    """Which devices are due. Time counts only while requests are answered: after a quiet night, a
    device that was used in the evening is as good as before.
    """

    def __init__(self) -> None:
        self._waits: dict[DeviceId, _Wait] = {}

    def answered(
        self, used: Set[DeviceId], present: Collection[DeviceId], now: float
    ) -> list[DeviceId]:
        """A request was answered by the devices `used` of those `present`. Returns those to measure
        again, each once per wait.
        """
        self._waits = {each: self._waits.get(each) or _Wait(FIRST_S) for each in present}
        due = []
        for device, wait in self._waits.items():
            if device in used:
                wait.since_s = None
                if now - wait.tried_s > PROBATION_S:
                    wait.wait_s = FIRST_S
            elif wait.since_s is None:
                wait.since_s = now
            elif now - wait.since_s >= wait.wait_s:
                wait.since_s, wait.tried_s = now, now
                wait.wait_s = min(LAST_S, 2 * wait.wait_s)
                due.append(device)
        return due
