"""Messages that cost as much as on a smaller computer."""

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from protos import imbrex_pb2 as pb
from protos.wire.endpoint import Endpoint

# The resolution of an event loop's timers; longer delays have another cause.
_COARSE_S = 1e-3


@dataclass(slots=True)
class SlowEndpoint(Endpoint):
    """Charges what messages and described tasks cost on top of this computer's own cost, as a
    serial resource of the process beside the computation, like an event loop. Messages between
    workers are charged `peer_message_s` and `peer_byte_s`.
    """

    peer_message_s: float = 0.0
    peer_byte_s: float = 0.0

    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _free_s: float = field(default=0.0, repr=False)
    _late_s: float = field(default=0.0, repr=False)

    async def handle(self, size_bytes: int, sent: Sequence[pb.Item] = ()) -> None:
        """Returns when a message that arrives or leaves now, and all before it, have been
        handled.
        """
        described_s = sum(item.HasField("task") for item in sent) * self.describe_s
        cost_s = self.message_s + size_bytes * self.byte_s + described_s
        due_s = self._due_s(cost_s, self._late_s)
        if not due_s:
            return
        await asyncio.sleep(due_s - time.monotonic())
        # Errors of the last timer must not add up.
        self._late_s = min(time.monotonic() - due_s, _COARSE_S)

    def charge(self, size_bytes: int) -> None:
        """The same for a message between workers, in a thread without an event loop."""
        due_s = self._due_s(self.peer_message_s + size_bytes * self.peer_byte_s, 0.0)
        while (left_s := due_s - time.monotonic()) > 0:
            time.sleep(left_s)

    def _due_s(self, cost_s: float, late_s: float) -> float:
        """The time at which a message has been handled; 0: at once."""
        with self._lock:
            self.handled += 1
            if not cost_s:
                return 0.0
            self._free_s = max(self._free_s, time.monotonic() - late_s) + cost_s
            return self._free_s
