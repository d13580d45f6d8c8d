"""The order of measurements: links one after the other, and one device of each kind. Pure."""

from collections import deque
from collections.abc import Iterable

from protos.wire.facts import DeviceId

# A link is probed until two undisturbed probes in a row agree, at most this often. Requests,
# weights, or processes that are still starting at either end disturb a probe.
PROBES_AT_MOST = 6
AGREE = 1.1

# The causes whose links are all measured now, and the device whose link is to be probed, if any.
LinkNews = tuple[list[str], DeviceId | None]


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
