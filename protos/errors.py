"""The root of all our errors, with one branch for each party that has to act.

Every error carries what happened (`cause`) and what to do about it (`cure`) as fields; one
table on each surface (HTTP, gRPC, command line) maps branches to codes.
"""

from typing import ClassVar


class ImbrexError(Exception):
    """A known failure: `cause` says what happened, `cure` what to do about it."""

    code: ClassVar[str] = "internal"

    def __init__(self, *, cause: str, cure: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.cure = cure

    def __str__(self) -> str:
        return f"{self.cause}. {self.cure}"


class BadRequest(ImbrexError):
    """The caller sent something that cannot be used; sending it again won't help."""

    code: ClassVar[str] = "bad_request"


class Unsupported(BadRequest):
    """The caller asks for a feature of a protocol that imbrex does not implement."""

    code: ClassVar[str] = "unsupported"


class NotFound(ImbrexError):
    """The caller named something that does not exist here."""

    code: ClassVar[str] = "not_found"


class Infeasible(ImbrexError):
    """No plan or device satisfies the constraints; the operator must change one of them."""

    code: ClassVar[str] = "infeasible"


class TooLittleMemory(Infeasible):
    """The devices that are there cannot hold a network; more of them could."""

    code: ClassVar[str] = "too_little_memory"


class Unavailable(ImbrexError):
    """It cannot be done now, but may be later: no device, a full queue, a starting daemon."""

    code: ClassVar[str] = "unavailable"


class Overloaded(Unavailable):
    """The queue is full; there may be room in `retry_after_s`."""

    code: ClassVar[str] = "overloaded"

    def __init__(self, *, cause: str, cure: str, retry_after_s: float) -> None:
        super().__init__(cause=cause, cure=cure)
        self.retry_after_s = retry_after_s


class LostWorker(Unavailable):
    """A worker went away while it was needed."""

    code: ClassVar[str] = "lost_worker"


class PeerViolation(ImbrexError):
    """A peer broke the protocol: its bug or its version, never the user's input."""

    code: ClassVar[str] = "peer_violation"


class BadConfiguration(ImbrexError):
    """A setting, a file or a port of this machine is wrong; its owner must correct it."""

    code: ClassVar[str] = "bad_configuration"
