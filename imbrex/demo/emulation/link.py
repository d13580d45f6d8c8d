"""Messages that cost what they cost a smaller computer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from protos.endpoint import Endpoint

# What an event loop's timers are rounded to; what is later than that has another cause.
_COARSE_S = 1e-3


@dataclass(slots=True)
class SlowEndpoint(Endpoint):
    """Charges `message_s`, and `byte_s` per byte, on top of what this computer needs itself: as a
    serial resource of its process, beside the computation, as an event loop is.
    """

    _free_s: float = field(default=0.0, repr=False)
    _late_s: float = field(default=0.0, repr=False)

    async def handle(self, size_bytes: int) -> None:
        """Returns when a message that is due now has been handled, after those before it."""
        self.handled += 1
        cost_s = self.message_s + size_bytes * self.byte_s
        if not cost_s:
            return
        # An absolute moment, and what the last timer was late or early: it must not add up.
        now_s = time.monotonic()
        self._free_s = due_s = max(self._free_s, now_s - self._late_s) + cost_s
        await asyncio.sleep(due_s - now_s)
        self._late_s = min(time.monotonic() - due_s, _COARSE_S)
