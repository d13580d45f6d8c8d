"""Pieces that overtook their task: held for a while, up to a cap."""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from worker.actions import Piece, TaskKey

# The host's task message is at most a few round trips behind its peers' data.
EARLY_FOR_S = 30.0


@dataclass(slots=True, eq=False)
class _Held:
    since_s: float
    pieces: list[Piece] = field(default_factory=list)
    held_bytes: int = 0


class EarlyPieces:
    """By task, oldest first. What is dropped is counted in `dropped`, which the caller owns."""

    def __init__(self, cap_bytes: int, dropped: Counter[str]) -> None:
        self._cap_bytes = cap_bytes
        self._dropped = dropped
        self._held: OrderedDict[TaskKey, _Held] = OrderedDict()
        self.held_bytes = 0

    def hold(self, piece: Piece, now: float) -> None:
        """Keeps a piece until its task comes, or drops it where too much is held."""
        size = piece.array.nbytes
        if self.held_bytes + size > self._cap_bytes:
            self._dropped["early_overflow"] += 1
            return
        held = self._held.setdefault(piece.key, _Held(now))
        held.pieces.append(piece)
        held.held_bytes += size
        self.held_bytes += size

    def take(self, key: TaskKey) -> list[Piece]:
        """The pieces of a task, which are not held any more."""
        held = self._held.pop(key, None)
        if held is None:
            return []
        self.held_bytes -= held.held_bytes
        return held.pieces

    def forget(self, request: str) -> None:
        """Drops what is held for a request that ended."""
        for key in [key for key in self._held if key.request == request]:
            self.take(key)

    def expire(self, now: float) -> None:
        """Drops what has waited for `EARLY_FOR_S`."""
        while self._held:
            key, held = next(iter(self._held.items()))
            if now - held.since_s < EARLY_FOR_S:
                return
            self._dropped["early_expired"] += len(self.take(key))
