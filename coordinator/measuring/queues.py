"""The order of measurements: links one after the other, and one device of each kind; and when a
device that no request uses is measured again. Pure: what needs the time takes `now`.

A device that was slow (heat, another program, a disturbed link) is left out of plans, and then
nothing shows that it is fast again. So it gets a trial after a minute without work, and after twice
as long each time that it is left out again.
"""

from collections import deque
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass

from protos.wire.facts import DeviceId

# A link is probed until two undisturbed probes in a row agree, at most this often. Requests,
# weights, or processes that are still starting at either end disturb a probe.
PROBES_AT_MOST = 6
AGREE = 1.1

# The causes whose links are all measured now, and the device whose link is to be probed, if any.
LinkNews = tuple[list[str], DeviceId | None]

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
        self._waits = {key: self._waits.get(key) or _Wait(FIRST_S) for key in present}
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


class LinkQueue:
    """Links are probed one at a time: parallel probes would disturb each other."""

    def __init__(self) -> None:
        # The cause to report once the links of these devices are measured.
        self._wanted: deque[tuple[str, deque[DeviceId]]] = deque()
        self._probes, self._before = 0, 0.0

    @property
    def unprobed(self) -> set[DeviceId]:
        """Devices whose link is being probed, or waits to be."""
        return {device for _, devices in self._wanted for device in devices}

    def want(self, cause: str, devices: Iterable[DeviceId]) -> LinkNews:
        """The links of these devices are to be measured."""
        self._wanted.append((cause, deque(devices)))
        return self._next() if len(self._wanted) == 1 else ([], None)

    def probed(self, bytes_per_s: float, *, disturbed: bool = False) -> LinkNews:
        """The rate of the link that was probed; 0 if its device was lost. `disturbed`: other
        traffic ran meanwhile.
        """
        self._probes += 1
        agree = self._before / AGREE <= bytes_per_s <= self._before * AGREE
        self._before = 0.0 if disturbed else bytes_per_s
        if not bytes_per_s or self._probes == PROBES_AT_MOST or (agree and not disturbed):
            self._wanted[0][1].popleft()
            self._probes, self._before = 0, 0.0
        return self._next()

    def _next(self) -> LinkNews:
        causes = []
        while self._wanted and not self._wanted[0][1]:
            causes.append(self._wanted.popleft()[0])
        return causes, self._wanted[0][1][0] if self._wanted else None


class ProfileQueue:
    """Profiles one device at a time; devices of one kind share the profile. Both methods return
    the device that is to be profiled now, if another one is.
    """

    def __init__(self) -> None:
        self._wanted: dict[DeviceId, str] = {}
        self._current: tuple[DeviceId, str] | None = None

    def wants(self, device: DeviceId) -> bool:
        """Whether a device is being profiled, or waits to be."""
        return device in self._wanted or (self._current is not None and self._current[0] == device)

    def want(self, device: DeviceId, kind: str) -> DeviceId | None:
        """A device is to be profiled: its kind has no profile, or a person wants a new one."""
        self._wanted[device] = kind
        return self._next()

    def profiled(self, *, found: bool) -> DeviceId | None:
        """Whether there is a profile of the device that was being profiled."""
        assert self._current is not None, "nobody is profiled"
        kind, self._current = self._current[1], None
        if found:
            left = self._wanted.items()
            self._wanted = {device: other for device, other in left if other != kind}
        return self._next()

    def _next(self) -> DeviceId | None:
        if not self._wanted or self._current is not None:
            return None
        device = next(iter(self._wanted))
        self._current = device, self._wanted.pop(device)
        return device
