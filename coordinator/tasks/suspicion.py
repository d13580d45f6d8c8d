"""Which request makes devices fail: one that they compute as they end, again and again.

A device that ends, or that refuses what is sent to it, is not at fault if a request is: another
would end of it as well.

* What a device refuses names its request; two refusals decide.
* A process that ends names nobody. From the second on, every request that was there is a suspect,
  which from then on is computed alone on one device (`place`), while the others go on
  elsewhere: if that device ends as well, the request is at fault, or else it is answered. So a
  request is not lost because two devices that computed it were restarted or killed. Others that
  found no other device than a suspect's are not under suspicion for its end.
* What was cancelled on a device just now may still be computed there, and counts as if it were. If
  a request that was there when a device ended is aborted or cancelled, its other devices may end of
  it, too, for which nobody else is blamed.
* Chance speaks for a request: devices that ended without it in the last minute. In a home where
  devices are being killed, one that happened to be on two of them is no suspect.
* Silence counts for nothing: cables and power fail for all requests alike.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from coordinator.tasks.events import RequestId
from coordinator.tasks.runs import LINGERS_S, RequestRun
from protos.errors import RequestAtFault
from protos.wire.facts import DeviceId

# With this departure a request becomes a suspect, or is at fault if it was named.
MOST_DEPARTURES = 2
# For so long a device that ended without a request speaks for it.
REMEMBERED_S = 60.0
# Devices that can end in that time; a home has fewer.
_MOST_REMEMBERED = 256

_ELSE = "other requests are not affected"


class Suspicion:
    """Remembers the crashes of the last minute, and which requests were present at each."""

    def __init__(self) -> None:
        self._crashes: deque[tuple[float, frozenset[RequestId]]] = deque(maxlen=_MOST_REMEMBERED)
        # Devices that may still be computing a request with which others crashed: when it was over.
        self._lingering: dict[DeviceId, float] = {}

    def refused(self, run: RequestRun) -> RequestAtFault | None:
        """A device refused what was sent for this request. Its error, if it is at fault."""
        run.refusals += 1
        if run.refusals < MOST_DEPARTURES:
            return None
        return RequestAtFault(
            cause=f"{run.refusals} devices refused what was sent to them for this request",
            cure=f"Report this with the coordinator's log; {_ELSE}",
        )

    def crashed(
        self, device: DeviceId, present: Mapping[RequestId, RequestRun], now: float
    ) -> tuple[RequestId, RequestAtFault] | None:
        """A device ended that was computing for these requests. The one that is at fault, with its
        error; None if none is, or those present only now become suspects.
        """
        if now - self._lingering.pop(device, -math.inf) < LINGERS_S:
            return None
        self._crashes.append((now, frozenset(present)))
        lately = [requests for at_s, requests in self._crashes if now - at_s <= REMEMBERED_S]
        suspects = [request for request, run in present.items() if run.is_suspect]
        for request, run in present.items():
            run.crashes += 1
            without = sum(request not in requests for requests in lately)
            run.is_suspect = run.crashes >= MOST_DEPARTURES and run.crashes > without
        if len(suspects) != 1:
            return None
        (request,) = suspects
        run = present[request]
        return (request, at_fault(run)) if run.is_suspect else None

    def ended(self, run: RequestRun, now: float) -> None:
        """A request that was being computed when a device crashed is over: answered or not."""
        lately = {
            request: at_s for request, at_s in self._lingering.items() if now - at_s < LINGERS_S
        }
        self._lingering = lately | dict.fromkeys(run.occupied, now)

    def began(self, device: DeviceId) -> None:
        """A device is there again, with nothing to compute."""
        self._lingering.pop(device, None)


def at_fault(run: RequestRun) -> RequestAtFault:
    """The error of a request as whose tasks were computed devices ended."""
    return RequestAtFault(
        cause=f"{run.crashes} devices ended while they computed for this request",
        cure=f"See those devices' logs: out of memory, or a fault in the engine; {_ELSE}",
    )
