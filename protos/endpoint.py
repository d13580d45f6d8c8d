"""What handles messages at either end of a connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Endpoint:
    """Counts the messages of a process. `message_s` and `byte_s` are what each of them, and of
    their bytes, costs beyond what they do on this computer.
    """

    handled: int = 0
    message_s: float = 0.0
    byte_s: float = 0.0

    async def handle(self, size_bytes: int) -> None:
        """Returns when a message that is due now has been handled."""
        del size_bytes
        self.handled += 1

    def charge(self, size_bytes: int) -> None:
        """The same of a message between workers, in a thread that is no event loop."""
        del size_bytes
        self.handled += 1
