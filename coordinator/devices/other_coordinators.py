"""Other coordinators that the workers also work for, and how much of them they use."""

from __future__ import annotations

from dataclasses import dataclass

# Reports of tasks arrive up to a second after the device has counted them: over a shorter period
# that would look like another's work.
PERIOD_S = 5.0
_NEWEST_WEIGHT = 0.5
# A device that others use all the time still computes a task of ours between two of theirs.
_MOST = 0.9


@dataclass(frozen=True, slots=True, order=True)
class Other:
    """Another coordinator, by the name of its machine. A copy has this one's id, because its state
    directory was copied.
    """

    name: str
    is_copy: bool = False

    @classmethod
    def of(cls, identified: str, own: str) -> Other:
        """Parses how two coordinators identify themselves: an id, a space, and a name."""
        identity, _, name = identified.partition(" ")
        return cls(name or identity, identity == own.partition(" ")[0])

    def __str__(self) -> str:
        return f"a copy of this one on {self.name}" if self.is_copy else self.name


class OthersShare:
    """How much of its time a device computes for other coordinators: what it says that it has
    computed, less what it has computed for this one.
    """

    def __init__(self) -> None:
        self.share = 0.0
        self._own_s = 0.0
        self._before: tuple[float, float] | None = None

    @property
    def slowdown(self) -> float:
        """How many times as long a task takes on what the others leave."""
        return 1 / (1 - self.share)

    def computed(self, seconds: float) -> None:
        """The device has computed tasks of this coordinator for so long."""
        self._own_s += seconds

    def told(self, computed_s: float, are_others: bool, concurrency: int, now: float) -> None:
        """The device says how long it has computed since its start, for all, whether other
        coordinators greet it, and how many tasks it computes at once.
        """
        others_s = computed_s - self._own_s
        before_s, others_before_s = self._before or (now, others_s)
        if not are_others or self._before is None:
            self.share, self._before = 0.0, (now, others_s)
        elif now - before_s >= PERIOD_S:
            capacity_s = (now - before_s) * max(1, concurrency)
            newest = (others_s - others_before_s) / capacity_s
            mean = self.share + _NEWEST_WEIGHT * (newest - self.share)
            self.share, self._before = min(max(mean, 0.0), _MOST), (now, others_s)
