"""The accounting of messages at either end of a connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protos import imbrex_pb2 as pb


@dataclass(slots=True)
class Endpoint:
    """Counts the messages of a process. Each costs `message_s` seconds, each of its bytes `byte_s`,
    and each task that it describes `describe_s`, beyond their cost on this machine.
    """

    handled: int = 0
    message_s: float = 0.0
    byte_s: float = 0.0
    describe_s: float = 0.0

    async def handle(self, size_bytes: int, sent: Sequence[pb.Item] = ()) -> None:
        """Returns when a message that arrives, or leaves now with these items, has been handled."""
        del size_bytes, sent
        self.handled += 1

    def charge(self, size_bytes: int) -> None:
        """The same for a message between workers, in a thread without an event loop."""
        del size_bytes
        self.handled += 1
