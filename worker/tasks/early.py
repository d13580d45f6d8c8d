"""Pieces that overtook their task: held for a while, up to a cap.

Anybody who may send at all can send pieces of tasks that never come. So each piece counts as more
than nothing, however small it is, and where there is no room, whoever holds most loses what it sent
last: nobody's flood drops what others sent.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from sys import getsizeof

from worker.tasks.actions import Piece, TaskKey

# The host's task message is at most a few round trips behind its peers' data.
EARLY_FOR_S = 30.0
# What a piece takes beside its numbers: keys, names, boxes (about 1.5 KB, measured).
PIECE_BYTES = 2048


@dataclass(slots=True, eq=False)
class _Held:
    since_s: float
    pieces: dict[Piece, None] = field(default_factory=dict)


class EarlyPieces:
    """By task, oldest first. What is dropped is counted in `dropped`, which the caller owns."""

    def __init__(self, cap_bytes: int, dropped: Counter[str]) -> None:
        self._cap_bytes = cap_bytes
        self._dropped = dropped
        self._held: OrderedDict[TaskKey, _Held] = OrderedDict()
        # Bytes by sender, and their pieces in the order in which they came.
        self._of: Counter[str] = Counter()
        self._order: dict[str, dict[Piece, None]] = {}
        self.held_bytes = 0

    def hold(self, piece: Piece, now: float) -> None:
        """Keeps a piece until its task comes, or drops what there is no room for."""
        size = _size(piece)
        while self.held_bytes + size > self._cap_bytes:
            self._dropped["early_overflow"] += 1
            greedy, most_bytes = next(iter(self._of.most_common(1)), (piece.sender, 0))
            if most_bytes <= self._of[piece.sender] + size:
                return
            self._drop(next(reversed(self._order[greedy])))
        self._held.setdefault(piece.key, _Held(now)).pieces[piece] = None
        self._order.setdefault(piece.sender, {})[piece] = None
        self._of[piece.sender] += size
        self.held_bytes += size

    def take(self, key: TaskKey) -> list[Piece]:
        """The pieces of a task, which are not held any more."""
        held = self._held.pop(key, None)
        if held is None:
            return []
        for piece in held.pieces:
            self._forget(piece)
        return list(held.pieces)

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

    def _drop(self, piece: Piece) -> None:
        held = self._held[piece.key]
        del held.pieces[piece]
        if not held.pieces:
            del self._held[piece.key]
        self._forget(piece)

    def _forget(self, piece: Piece) -> None:
        size = _size(piece)
        self.held_bytes -= size
        self._of[piece.sender] -= size
        order = self._order[piece.sender]
        del order[piece]
        if not order:
            del self._order[piece.sender], self._of[piece.sender]


def _size(piece: Piece) -> int:
    names = getsizeof(piece.key.request) + getsizeof(piece.tensor)
    return piece.array.nbytes + names + PIECE_BYTES
