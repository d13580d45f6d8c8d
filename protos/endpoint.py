"""The accounting of messages at either end of a connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Endpoint:
    """Counts the messages of a process. Each costs `message_s` seconds, and each of its bytes
    `byte_s`, beyond its cost on this machine.
    """

    handled: int = 0
    message_s: float = 0.0
    byte_s: float = 0.0

    async def handle(self, size_bytes: int) -> None:
        """Returns when a message that arrives or leaves now has been handled."""
        del size_bytes
        self.handled += 1

    def charge(self, size_bytes: int) -> None:
        """The same for a message between workers, in a thread without an event loop."""
        del size_bytes
        self.handled += 1
