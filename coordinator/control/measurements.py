"""The order of measurements: links one after the other, and one device of each kind."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from coordinator.control import actions, events
from coordinator.control.actions import Action
from coordinator.control.events import Event
from coordinator.control.machine import ControlMachine
from protos.wire.facts import DeviceId

# A link is probed until two undisturbed probes in a row agree, at most this often. Requests,
# weights, or processes that are still starting at either end disturb a probe.
PROBES_AT_MOST = 6
AGREE = 1.1


class Links(ControlMachine):
    """Links are probed one at a time: parallel probes would disturb each other."""

    def __init__(self) -> None:
        # The cause to report once the links of these devices are measured.
        self._wanted: deque[tuple[str, deque[DeviceId]]] = deque()
        self._probes, self._before = 0, 0.0

    @property
    def unprobed(self) -> set[DeviceId]:
        """Devices whose link is being probed, or waits to be."""
        return {device for _, devices in self._wanted for device in devices}

    def _react(self, event: Event, now: float) -> Iterator[Action]:
        match event:
            case events.LinksWanted(cause, devices):
                self._wanted.append((cause, deque(devices)))
                if len(self._wanted) == 1:
                    yield from self._go_on()
            case events.Probed(_, rate, disturbed):
                self._probes += 1
                agree = self._before / AGREE <= rate <= self._before * AGREE
                self._before = 0.0 if disturbed else rate
                if not rate or self._probes == PROBES_AT_MOST or (agree and not disturbed):
                    self._wanted[0][1].popleft()
                    self._probes, self._before = 0, 0.0
                yield from self._go_on()

    def _go_on(self) -> Iterator[Action]:
        while self._wanted and not self._wanted[0][1]:
            yield actions.Replan(self._wanted.popleft()[0])
        if self._wanted:
            yield actions.ProbeLink(self._wanted[0][1][0])


class Kinds(ControlMachine):
    """Profiles one device at a time; devices of one kind share the profile."""

    def __init__(self) -> None:
        self._wanted: dict[DeviceId, str] = {}
        self._current: tuple[DeviceId, str] | None = None

    def wants(self, device: DeviceId) -> bool:
        """Whether a device is being profiled, or waits to be."""
        return device in self._wanted or (self._current is not None and self._current[0] == device)

    def _react(self, event: Event, now: float) -> Iterator[Action]:
        match event:
            case events.ProfileWanted(device, kind):
                self._wanted[device] = kind
            case events.Profiled(_, found) if self._current is not None:
                kind, self._current = self._current[1], None
                if found:
                    left = self._wanted.items()
                    self._wanted = {each: other for each, other in left if other != kind}
        if self._wanted and self._current is None:
            device = next(iter(self._wanted))
            self._current = device, self._wanted.pop(device)
            yield actions.ProfileDevice(device)
