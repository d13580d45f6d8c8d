"""Devices that repeatedly give wrong results are left out for a while. Pure: it takes `now`.

Bad memory, an overclocked processor or a failing power supply make a device compute wrong values
that look like results. Those that can be recognised are refused and computed elsewhere, which costs
time; after a few of them the device is left out. It gets another chance after a minute, then after
twice as long each time. Errors that only recomputing shows may have reached earlier answers: a
device that is convicted of one stays out until a person trusts it again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

from protos.wire.facts import DeviceId

# One wrong result can be a flipped bit; three within ten minutes are a fault.
STRIKES = 3
STRIKES_WITHIN_S = 600.0
FIRST_S = 60.0
LAST_S = 3600.0
# During probation after its return, one wrong result is enough to leave a device out again.
PROBATION_S = 600.0
# Four times the devices of a cluster: ids can be forged, so the records are capped.
MOST_RECORDS = 256


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
            del self._records[min(self._records, key=lambda each: self._records[each].convicted)]
        return self._records.setdefault(device, _Record())

    def pardon(self, device: DeviceId) -> None:
        """Forgets the record of a device."""
        self._records.pop(device, None)
