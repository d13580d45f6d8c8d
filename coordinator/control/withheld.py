"""Devices that are connected and get no new work: drained by a person, or in quarantine.

    in use --(Drained)----------------> draining --(Emptied, or PATIENCE_S)--> drained
    in use --(Wrong, too often)-------> quarantined, for a while
    in use --(Wrong, proven)----------> quarantined
    any of them --(Resumed)-----------> in use

Draining is invisible to clients: planners leave the device out at once, its plans are replaced,
requests that began on them finish there, and after that the device gets no work. A device in
quarantine is dropped at once, as if it were lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from coordinator.control import actions, events
from coordinator.control.actions import Action
from coordinator.control.events import Event
from coordinator.control.machine import ControlMachine
from coordinator.control.quarantine import Quarantine
from protos.wire.facts import DeviceId

# After this, unfinished work moves elsewhere: a plan that is held would never be replaced.
PATIENCE_S = 60.0

WithheldState = Literal["checking", "draining", "drained", "quarantined"]


@dataclass(frozen=True, slots=True)
class Apart:
    """Why a device gets no new work, and what brings it back."""

    state: WithheldState
    reason: str
    cure: str

    @property
    def is_out(self) -> bool:
        """Whether it may not even finish the work that it has."""
        return self.state != "draining"


class Withheld(ControlMachine):
    """Which devices are set aside. `drained` names those that were drained before the start."""

    def __init__(self, drained: Mapping[DeviceId, str]) -> None:
        self._quarantine = Quarantine()
        self._drained = dict(drained)
        # Until when draining devices may finish, and when quarantined ones are tried again.
        self._finishing: dict[DeviceId, float] = {}
        self._back_s: dict[DeviceId, float] = {}

    @property
    def due_s(self) -> float:
        """When the first grace period or quarantine ends."""
        return min((*self._finishing.values(), *self._back_s.values()), default=inf)

    def of(self, device: DeviceId, now: float) -> Apart | None:
        """Why a device is set aside, if it is."""
        if reason := self._quarantine.reason(device, now):
            cure = f"Check its memory, power and clock rates; `imbrex resume {device}` trusts it"
            return Apart("quarantined", reason, cure)
        back = f"`imbrex resume {self._drained.get(device, device)}` uses it again"
        if device in self._finishing:
            return Apart("draining", "it finishes what it was given", back)
        if device in self._drained:
            return Apart("drained", "it was drained, and gets no work", back)
        return None

    def find(self, name: str) -> DeviceId | None:
        """The drained device of this id, or of this name if only one has it."""
        found = [device for device, called in self._drained.items() if name in (device, called)]
        return found[0] if len(found) == 1 else None

    def _react(self, event: Event, now: float) -> Iterator[Action]:
        match event:
            case events.Drained(device, name) if device not in self._drained:
                self._drained[device] = name
                self._finishing[device] = inf
                yield actions.Replan(f"{device} is drained")
                yield actions.Empty(device)
            case events.Replanned(device) if device in self._finishing:
                self._finishing[device] = now + PATIENCE_S
            case events.Emptied(device) if device in self._finishing:
                del self._finishing[device]
                yield actions.Withdraw(device)
            case events.Tick():
                yield from self._tick(now)
            case events.Resumed(device):
                for kept in (self._drained, self._finishing, self._back_s):
                    kept.pop(device, None)
                self._quarantine.pardon(device)
                yield actions.Replan(f"{device} is resumed")
            case events.Wrong(device, cause, proven):
                yield from self._wrong(device, cause, now, proven=proven)

    def _wrong(self, device: DeviceId, cause: str, now: float, *, proven: bool) -> Iterator[Action]:
        if proven:
            seconds = inf if self._quarantine.convict(device, cause) else 0.0
        else:
            seconds = self._quarantine.accuse(device, cause, now)
        if seconds:
            self._back_s[device] = now + seconds
            yield actions.LeaveOut(device, cause, seconds)
            yield actions.Replan(f"{device} is quarantined")

    def _tick(self, now: float) -> Iterator[Action]:
        for device in [each for each, until_s in self._finishing.items() if until_s <= now]:
            del self._finishing[device]
            yield actions.Withdraw(device)
        for device in [each for each, until_s in self._back_s.items() if until_s <= now]:
            del self._back_s[device]
            yield actions.Replan(f"{device} is tried again")
