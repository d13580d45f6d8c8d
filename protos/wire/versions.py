"""Versions of the wire protocol, and how two daemons agree on one.

A version stands for everything in `imbrex.proto` and `frames.py` that an older peer would misread;
what it would only ignore, such as a new field, needs no new version. Every daemon speaks its newest
version and the one before, so that a cluster can be upgraded one device after the other. The caller
sends its newest, and the callee answers with the newest that both speak: neither has to know later
versions.
"""

from dataclasses import dataclass

from protos.errors import PeerViolation

# Raised with every change that an older peer would misread; docs/upgrading.md says what it was.
PROTOCOL = 2
# The first version in which a host can ask for peers' tensors (`Show`).
SHOWS = 2


@dataclass(frozen=True, slots=True)
class Spoken:
    """The versions that a daemon speaks: `newest`, and the one before."""

    newest: int

    @property
    def oldest(self) -> int:
        """The oldest version that it still speaks."""
        return max(1, self.newest - 1)

    def answer(self, theirs: int, caller: str, own: str) -> int:
        """The version to speak with a caller whose newest is `theirs`; `own` names this daemon in
        errors.

        Raises:
            PeerViolation: it is too old.
        """
        if theirs < self.oldest:
            raise _too_far_apart(caller, theirs, own, self)
        return min(theirs, self.newest)

    def require(self, answered: int, peer: str) -> None:
        """Checks the version that a callee answered.

        Raises:
            PeerViolation: it is too old, or not one that both sides speak.
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
