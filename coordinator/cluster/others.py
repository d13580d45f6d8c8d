"""Other coordinators that our workers work for, too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Other:
    """One of them, by the name of its machine; a copy has our own id, with a copied state
    directory.
    """

    name: str
    is_copy: bool = False

    @classmethod
    def of(cls, told: str, own: str) -> Other:
        """From what two coordinators call themselves: an id, and after a space a name."""
        identity, _, name = told.partition(" ")
        return cls(name or identity, identity == own.partition(" ")[0])

    def __str__(self) -> str:
        return f"a copy of this one on {self.name}" if self.is_copy else self.name
