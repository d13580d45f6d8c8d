"""Pieces that arrive before their task: held for a while, up to a cap.

Any permitted sender can send pieces of tasks that never arrive. So even the smallest piece counts
with a minimum size, and if there is no room, the sender that holds most loses its latest pieces: a
flood from one sender never drops the pieces of another.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from sys import getsizeof

from worker.tasks.actions import TaskKey, TensorPiece

# The host's task message arrives at most a few round trips after its peers' data.
EARLY_FOR_S = 30.0
# The overhead of a piece: keys, names, boxes (about 1.5 KB, measured).
PIECE_BYTES = 2048


@dataclass(slots=True, eq=False)
class _Held:
    since_s: float
    pieces: dict[TensorPiece, None] = field(default_factory=dict)


class EarlyPieces:
    """Pieces by task, oldest first. Dropped pieces are counted in `dropped`, which the caller
    owns.
    """

    def __init__(self, cap_bytes: int, dropped: Counter[str]) -> None:
        self._cap_bytes = cap_bytes
        self._dropped = dropped
        self._held: OrderedDict[TaskKey, _Held] = OrderedDict()
        # Bytes by sender, and their pieces in order of arrival.
        self._of: Counter[str] = Counter()
        self._order: dict[str, dict[TensorPiece, None]] = {}
        self.held_bytes = 0

    def hold(self, piece: TensorPiece, now: float) -> None:
        """Holds a piece until its task arrives, or drops pieces for lack of room."""
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

    def take(self, key: TaskKey) -> list[TensorPiece]:
        """Removes and returns the pieces of a task."""
        held = self._held.pop(key, None)
        if held is None:
            return []
        for piece in held.pieces:
            self._forget(piece)
        return list(held.pieces)

    def forget(self, request: str) -> None:
        """Drops the pieces of a request that has ended."""
        for key in [key for key in self._held if key.request == request]:
            self.take(key)

    def expire(self, now: float) -> None:
        """Drops pieces older than `EARLY_FOR_S`."""
        while self._held:
            key, held = next(iter(self._held.items()))
            if now - held.since_s < EARLY_FOR_S:
                return
            self._dropped["early_expired"] += len(self.take(key))

    def _drop(self, piece: TensorPiece) -> None:
        held = self._held[piece.key]
        del held.pieces[piece]
        if not held.pieces:
            del self._held[piece.key]
        self._forget(piece)

    def _forget(self, piece: TensorPiece) -> None:
        size = _size(piece)
        self.held_bytes -= size
        self._of[piece.sender] -= size
        order = self._order[piece.sender]
        del order[piece]
        if not order:
            del self._order[piece.sender], self._of[piece.sender]


def _size(piece: TensorPiece) -> int:
    names = getsizeof(piece.key.request) + getsizeof(piece.tensor)
    return piece.array.nbytes + names + PIECE_BYTES
