"""Other coordinators that this coordinator's workers also work for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Other:
    """Another coordinator, by the name of its machine. A copy has this one's id, because its state
    directory was copied.
    """

    name: str
    is_copy: bool = False

    @classmethod
    def of(cls, told: str, own: str) -> Other:
        """Parses how two coordinators identify themselves: an id, a space, and a name."""
        identity, _, name = told.partition(" ")
        return cls(name or identity, identity == own.partition(" ")[0])

    def __str__(self) -> str:
        return f"a copy of this one on {self.name}" if self.is_copy else self.name
