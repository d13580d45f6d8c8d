"""Versions of the wire between daemons, and which of them two daemons speak.

A version stands for everything in `imbrex.proto` and `frames.py` that an older peer would misread;
what it would only ignore, such as a new field, needs no new one. Every daemon speaks the newest
that it knows and the one before, so that a home can be upgraded one device after the other. A
caller says its newest, and who answers says the newest of both: neither has to know what comes
after it.
"""

from dataclasses import dataclass

from protos.errors import PeerViolation

# Raised with every change that an older peer would misread; docs/upgrading.md says what it was.
PROTOCOL = 2
# What a host may ask of peers' tensors (`Show`) came with this one.
SHOWS = 2


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a daemon speaks: `newest`, and the version before."""

    newest: int

    @property
    def oldest(self) -> int:
        """The oldest that it still speaks."""
        return max(1, self.newest - 1)

    def answer(self, theirs: int, caller: str, own: str) -> int:
        """What is spoken with a caller whose newest is `theirs`; `own` is us, for people.

        Raises:
            PeerViolation: it is too old.
        """
        if theirs < self.oldest:
            raise _too_far_apart(caller, theirs, own, self)
        return min(theirs, self.newest)

    def require(self, answered: int, peer: str) -> None:
        """Accepts what who was called answered.

        Raises:
            PeerViolation: it is too old, or did not keep to this rule.
        """
        if not self.oldest <= answered <= self.newest:
            raise _too_far_apart(peer, answered, "this device", self)


SPOKEN = Spoken(PROTOCOL)


def _too_far_apart(peer: str, theirs: int, own: str, ours: Spoken) -> PeerViolation:
    which = f"{ours.newest}" if ours.oldest == ours.newest else f"{ours.oldest} and {ours.newest}"
    older = peer if theirs < ours.oldest else own
    return PeerViolation(
        cause=f"{peer} speaks protocol {theirs}, and {own} {which}",
        cure=f"Install a newer imbrex on {older}; the same version everywhere is best",
    )
