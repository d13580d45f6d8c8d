"""A model's load: exponentially weighted averages. Takes `now`, reads no clock."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

# Time constant: arrivals of this long ago weigh 1/e.
ARRIVALS_S = 5.0
# Shorter, since groups are to change while the waiting requests are still there.
OUTSTANDING_S = 1.0
# Requests that came together come together again: two cameras' detectors pause and go on at the
# same time. Assumed.
REMEMBERED_S = 10.0
# A shorter burst says little about the rate.
_LEAST_AGE_S = 1.0


@dataclass(slots=True)
class Load:
    """One model's requests; `outstanding` of them wait or are being answered."""

    outstanding: int = 0
    _mean: float = 0.0
    _weight: float = 0.0
    _first_s: float | None = None
    _arrived_s: float = 0.0
    _changed_s: float = 0.0

    def arrived(self, now: float) -> None:
        """A request came."""
        self._weight = self._faded(now) + 1.0
        self._arrived_s = now
        self._first_s = now if self._first_s is None else self._first_s
        self._mean = self.mean_outstanding(now) if self.outstanding else self._after_pause(now)
        self._changed_s = now
        self.outstanding += 1

    def ended(self, now: float) -> None:
        """A request was answered, or given up."""
        self._mean = self.mean_outstanding(now)
        self._changed_s = now
        self.outstanding -= 1

    def rate_per_s(self, now: float) -> float:
        """Recent arrivals per second."""
        if self._first_s is None:
            return 0.0
        age = max(now - self._first_s, _LEAST_AGE_S)
        return self._faded(now) / (ARRIVALS_S * (1.0 - exp(-age / ARRIVALS_S)))

    def mean_outstanding(self, now: float) -> float:
        """Requests that were outstanding at a time, recently."""
        old = exp(-(now - self._changed_s) / OUTSTANDING_S)
        return old * self._mean + (1.0 - old) * self.outstanding

    def _after_pause(self, now: float) -> float:
        """How many requests to expect at a time: as many as before, the longer ago the fewer."""
        before = max(0.0, self._mean - 1.0)
        return 1.0 + before * exp(-(now - self._changed_s) / REMEMBERED_S)

    def _faded(self, now: float) -> float:
        return self._weight * exp(-(now - self._arrived_s) / ARRIVALS_S)
