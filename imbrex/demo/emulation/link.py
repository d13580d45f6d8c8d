"""Messages that cost what they cost a smaller computer."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field

from protos.endpoint import Endpoint

# What an event loop's timers are rounded to; what is later than that has another cause.
_COARSE_S = 1e-3


@dataclass(slots=True)
class SlowEndpoint(Endpoint):
    """Charges `message_s`, and `byte_s` per byte, on top of what this computer needs itself: as a
    serial resource of its process, beside the computation, as an event loop is. Messages between
    workers are charged `peer_message_s` and `peer_byte_s`.
    """

    peer_message_s: float = 0.0
    peer_byte_s: float = 0.0

    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _free_s: float = field(default=0.0, repr=False)
    _late_s: float = field(default=0.0, repr=False)

    async def handle(self, size_bytes: int) -> None:
        """Returns when a message that is due now has been handled, after those before it."""
        due_s = self._due_s(self.message_s + size_bytes * self.byte_s, self._late_s)
        if not due_s:
            return
        await asyncio.sleep(due_s - time.monotonic())
        # What the last timer was late or early must not add up.
        self._late_s = min(time.monotonic() - due_s, _COARSE_S)

    def charge(self, size_bytes: int) -> None:
        """The same of a message between workers, in a thread that is no event loop."""
        due_s = self._due_s(self.peer_message_s + size_bytes * self.peer_byte_s, 0.0)
        while (left_s := due_s - time.monotonic()) > 0:
            time.sleep(left_s)

    def _due_s(self, cost_s: float, late_s: float) -> float:
        """When a message has been handled; 0: at once."""
        with self._lock:
            self.handled += 1
            if not cost_s:
                return 0.0
            self._free_s = max(self._free_s, time.monotonic() - late_s) + cost_s
            return self._free_s
