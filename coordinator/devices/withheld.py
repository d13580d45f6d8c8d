"""Devices that are connected and get no new work: drained by a person, or in quarantine.

    in use --(drain)------------------> draining --(emptied, or PATIENCE_S)--> drained
    in use --(wrong, too often)-------> quarantined, for a while
    in use --(wrong, proven)----------> quarantined
    any of them --(resume)------------> in use
    connected --(admit)---------------> in use: until then it is checked

Draining is invisible to clients: planners leave the device out at once, its plans are replaced,
requests that began on them finish there, and after that the device gets no work. A device in
quarantine is dropped at once, as if it were lost. Pure: methods take `now`.

Bad memory, an overclocked processor or a failing power supply make a device compute wrong values
that look like results. Those that can be recognised are refused and computed elsewhere, which costs
time; after a few of them the device is left out. It gets another chance after a minute, then after
twice as long each time. Errors that only recomputing shows may have reached earlier answers: a
device that is convicted of one stays out until a person trusts it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from protos.wire.facts import DeviceId, Facts

# One wrong result can be a flipped bit; three within ten minutes are a fault.
STRIKES = 3
STRIKES_WITHIN_S = 600.0
FIRST_S = 60.0
LAST_S = 3600.0
# During probation after its return, one wrong result is enough to leave a device out again.
PROBATION_S = 600.0
# Four times the devices of a cluster: ids can be forged, so the records are capped.
MOST_RECORDS = 256
# After this, unfinished work moves elsewhere: a plan that is held would never be replaced.
PATIENCE_S = 60.0
# Several times the devices of a cluster: ids can be forged.
MOST_ADMITTED = 1024
WithheldState = Literal["checking", "draining", "drained", "quarantined"]


@dataclass(slots=True)
class _Record:
    """The record of one device. It is out until `until_s`; its last sentence lasted
    `sentence_s`.
    """

    strikes: deque[float] = field(default_factory=lambda: deque(maxlen=STRIKES))
    cause: str = ""
    sentence_s: float = 0.0
    until_s: float = 0.0

    @property
    def convicted(self) -> bool:
        """Whether it stays out until a person trusts it again."""
        return self.until_s == inf


class Quarantine:
    """Who is left out, and until when."""

    def __init__(self) -> None:
        self._records: dict[DeviceId, _Record] = {}

    def accuse(self, device: DeviceId, cause: str, now: float) -> float:
        """Records a wrong result. Returns for how many seconds the device is left out from now on;
        0 if it stays in use, or was out already.
        """
        record = self._record(device)
        if now < record.until_s:
            return 0.0
        if record.sentence_s and now - record.until_s > PROBATION_S:
            record.sentence_s = 0.0
        record.cause = cause
        record.strikes.append(now)
        often = len(record.strikes) == STRIKES and now - record.strikes[0] <= STRIKES_WITHIN_S
        if not (often or record.sentence_s):
            return 0.0
        record.sentence_s = min(LAST_S, 2 * record.sentence_s) if record.sentence_s else FIRST_S
        record.until_s = now + record.sentence_s
        record.strikes.clear()
        return record.sentence_s

    def convict(self, device: DeviceId, evidence: str) -> bool:
        """Records a result that is proven wrong. Returns whether the device was in use
        until now.
        """
        record = self._record(device)
        was_in = not record.convicted
        record.cause, record.until_s = evidence, inf
        return was_in

    def reason(self, device: DeviceId, now: float) -> str:
        """Why a device is left out; empty if it is not."""
        record = self._records.get(device)
        if record is None or now >= record.until_s:
            return ""
        if record.convicted:
            return f"it computes wrong results: {record.cause}"
        return (
            f"its recent results were wrong: {record.cause}. It is tried again in "
            f"{record.until_s - now:.0f} s"
        )

    def _record(self, device: DeviceId) -> _Record:
        if device not in self._records and len(self._records) >= MOST_RECORDS:
            # Convicted devices are the last to be forgotten.
            del self._records[
                min(self._records, key=lambda device: self._records[device].convicted)
            ]
        return self._records.setdefault(device, _Record())

    def pardon(self, device: DeviceId) -> None:
        """Forgets the record of a device."""
        self._records.pop(device, None)


@dataclass(frozen=True, slots=True)
class WithheldReason:
    """Why a device gets no new work, and what brings it back."""

    state: WithheldState
    reason: str
    cure: str

    @property
    def is_out(self) -> bool:
        """Whether it may not even finish the work that it has."""
        return self.state != "draining"


class Withheld:
    """Which devices are set aside. `drained` names those that were drained before the start."""

    def __init__(self, drained: Mapping[DeviceId, str]) -> None:
        self._quarantine = Quarantine()
        self._drained = dict(drained)
        # Devices that passed their entrance exam, each in the state in which it did, and why others
        # could not take it.
        self._admitted: dict[DeviceId, tuple[str, str]] = {}
        self._unexamined: dict[DeviceId, str] = {}
        # Until when draining devices may finish, and when quarantined ones are tried again.
        self._finishing: dict[DeviceId, float] = {}
        self._back_s: dict[DeviceId, float] = {}

    def of(self, device: DeviceId, now: float, facts: Facts | None = None) -> WithheldReason | None:
        """Why a device is set aside, if it is. One that is connected is as its `facts` say."""
        if reason := self._quarantine.reason(device, now):
            cure = f"Check its memory, power and clock rates; `imbrex resume {device}` trusts it"
            return WithheldReason("quarantined", reason, cure)
        back = f"`imbrex resume {self._drained.get(device, device)}` uses it again"
        if device in self._drained and device not in self._finishing:
            return WithheldReason("drained", "it was drained, and gets no work", back)
        if facts is not None and not self.is_admitted(facts):
            reason = self._unexamined.get(device, "it is taking its entrance exam")
            return WithheldReason("checking", reason, "")
        if device in self._finishing:
            return WithheldReason("draining", "it finishes what it was given", back)
        return None

    def is_admitted(self, facts: Facts) -> bool:
        """Whether a device has passed its entrance exam as it is now."""
        return self._admitted.get(facts.id) == state_of(facts)

    def admit(self, facts: Facts) -> bool:
        """A device has passed its entrance exam. Returns whether it had not before."""
        is_new = not self.is_admitted(facts)
        self._unexamined.pop(facts.id, None)
        self._admitted.pop(facts.id, None)
        if len(self._admitted) >= MOST_ADMITTED:
            del self._admitted[next(iter(self._admitted))]
        self._admitted[facts.id] = state_of(facts)
        return is_new

    def admit_again(self, facts: Facts) -> None:
        """A device has changed its engine: if it was admitted before, it still is."""
        if facts.id in self._admitted:
            self.admit(facts)

    def not_examined(self, device: DeviceId, reason: str = "") -> None:
        """Why a device cannot be examined; empty if it has gone."""
        if reason:
            self._unexamined[device] = reason
        else:
            self._unexamined.pop(device, None)

    def find(self, name: str) -> DeviceId | None:
        """The drained device of this id, or of this name if only one has it."""
        drained = [device for device, called in self._drained.items() if name in (device, called)]
        return drained[0] if len(drained) == 1 else None

    def drain(self, device: DeviceId, name: str) -> bool:
        """A person drains a device, which people call `name`. Returns whether it was not drained
        until now.
        """
        if device in self._drained:
            return False
        self._drained[device] = name
        self._finishing[device] = inf
        return True

    def replanned(self, device: DeviceId, now: float) -> None:
        """No plan is being made that could use a draining device: it gets no further work."""
        if device in self._finishing:
            self._finishing[device] = now + PATIENCE_S

    def emptied(self, device: DeviceId) -> bool:
        """Nothing runs on a draining device any more. Returns whether it was draining."""
        return self._finishing.pop(device, None) is not None

    def resume(self, device: DeviceId) -> None:
        """A person uses a device again, for whatever reason it was set aside."""
        for times in (self._drained, self._finishing, self._back_s):
            times.pop(device, None)
        self._quarantine.pardon(device)

    def wrong(self, device: DeviceId, cause: str, now: float, *, proven: bool = False) -> float:
        """A device gave a wrong result; `proven`: recomputing showed it. Returns for how many
        seconds it is left out from now on: infinity if its results are not trusted at all, 0 if it
        stays in use or was out already.
        """
        if proven:
            seconds = inf if self._quarantine.convict(device, cause) else 0.0
        else:
            seconds = self._quarantine.accuse(device, cause, now)
        if seconds:
            self._back_s[device] = now + seconds
        return seconds

    def tick(self, now: float) -> tuple[list[DeviceId], list[DeviceId]]:
        """The devices that have had enough time to finish, and those whose quarantine is over."""
        return _expired(self._finishing, now), _expired(self._back_s, now)


def state_of(facts: Facts) -> tuple[str, str]:
    """What an exam is valid for: this boot of this machine, with this processor and engine."""
    return facts.boot_id, facts.fingerprint


def _expired(until_s: dict[DeviceId, float], now: float) -> list[DeviceId]:
    """Removes the devices whose time has come."""
    expired = [device for device, end_s in until_s.items() if end_s <= now]
    for device in expired:
        del until_s[device]
    return expired
