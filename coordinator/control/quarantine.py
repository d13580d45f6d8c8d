"""Devices that keep giving wrong results are left out for a while. Pure: it takes `now`.

Bad memory, an overclocked processor or a failing power supply make a device compute nonsense that
looks like an answer. What can be seen of it is refused and computed elsewhere, at the cost of time;
after a few such results the device is not used any more. It gets another chance after a minute,
then after twice as long each time. What only shows when a task is computed again may have been in
answers before: a device that is convicted of that stays out until somebody trusts it again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

from coordinator.tasks.plan import DeviceId

# One wrong result can be a flipped bit; three within the time of a coffee break are a habit.
STRIKES = 3
STRIKES_WITHIN_S = 600.0
FIRST_S = 60.0
LAST_S = 3600.0
# After it came back, the first wrong result is enough for so long; then it is a device like others.
PROBATION_S = 600.0
# Four times as many devices as a cluster may have: ids can be made up, memory cannot.
MOST_RECORDS = 256


@dataclass(slots=True)
class _Record:
    """What one device did. It is out until `until_s`; `sentence_s` was the last one's length."""

    strikes: deque[float] = field(default_factory=lambda: deque(maxlen=STRIKES))
    cause: str = ""
    sentence_s: float = 0.0
    until_s: float = 0.0

    @property
    def convicted(self) -> bool:
        """Whether it stays out until somebody trusts it again."""
        return self.until_s == inf


class Quarantine:
    """Who is left out, and until when."""

    def __init__(self) -> None:
        self._records: dict[DeviceId, _Record] = {}

    def accuse(self, device: DeviceId, cause: str, now: float) -> float:
        """A wrong result; for how many seconds the device is left out from now on, 0 if it isn't
        or was already.
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
        """A result that is wrong beyond doubt; whether the device was in use until now."""
        record = self._record(device)
        was_in = not record.convicted
        record.cause, record.until_s = evidence, inf
        return was_in

    def reason(self, device: DeviceId, now: float) -> str:
        """Why a device is left out; empty if it isn't."""
        record = self._records.get(device)
        if record is None or now >= record.until_s:
            return ""
        if record.convicted:
            return f"it computes wrong results: {record.cause}"
        return (
            f"its results are wrong, lately: {record.cause}. It is tried again in "
            f"{record.until_s - now:.0f} s"
        )

    def _record(self, device: DeviceId) -> _Record:
        if device not in self._records and len(self._records) >= MOST_RECORDS:
            # The oldest of those that are not convicted.
            del self._records[min(self._records, key=lambda each: self._records[each].convicted)]
        return self._records.setdefault(device, _Record())

    def pardon(self, device: DeviceId) -> None:
        """Forgets what a device did."""
        self._records.pop(device, None)
