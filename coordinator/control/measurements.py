"""What is measured when: links, one after the other in peace; devices, one of each kind."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from coordinator.control import actions, events
from coordinator.control.actions import Action
from coordinator.control.events import Event
from coordinator.control.machine import Machine
from coordinator.tasks.plan import DeviceId

# A link is measured until two probes in a row agree that nothing disturbed, so often at most: not
# requests or weights, nor processes that are still starting beside either end.
PROBES_AT_MOST = 6
AGREE = 1.1


class Links(Machine):
    """Probes in parallel would measure each other: one at a time, whoever wanted them."""

    def __init__(self) -> None:
        # What is news once the links of these devices are measured.
        self._wanted: deque[tuple[str, deque[DeviceId]]] = deque()
        self._probes, self._before = 0, 0.0

    @property
    def unprobed(self) -> set[DeviceId]:
        """Devices whose link is being probed, or will be."""
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
            yield actions.Probe(self._wanted[0][1][0])


class Kinds(Machine):
    """One device at a time is profiled; alike ones share what was found."""

    def __init__(self) -> None:
        self._wanted: dict[DeviceId, str] = {}
        self._current: tuple[DeviceId, str] | None = None

    def wants(self, device: DeviceId) -> bool:
        """Whether a device is measured, or will be."""
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
            yield actions.Profile(device)
