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


class NoAnswer(LostWorker):
    """A worker did not answer in time: its network or its power may be gone, or it is too busy."""


class WorkerStopped(LostWorker):
    """A worker ended its stream itself: it was asked to stop."""


class PeerViolation(ImbrexError):
    """A peer broke the protocol: its bug or, as a rule, its version, never the user's input.
    `request` is the one that it was about, as far as that is known.
    """

    code: ClassVar[str] = "peer_violation"

    def __init__(
        self,
        *,
        cause: str,
        cure: str = "Run the same version of imbrex on every device",
        request: str = "",
    ) -> None:
        super().__init__(cause=cause, cure=cure)
        self.request = request


class StreamRefused(PeerViolation):
    """A worker refused what this daemon sent it: the sender's fault, not that device's."""

    code: ClassVar[str] = "stream_refused"


class RequestAtFault(ImbrexError):
    """A request makes devices fail, or sends what they refuse; sending it again won't help."""

    code: ClassVar[str] = "request_at_fault"


class NotFiniteAnswer(ImbrexError):
    """A model's answer has NaN or infinities where something is read from it: the model's fault."""

    code: ClassVar[str] = "not_finite_answer"


class BadConfiguration(ImbrexError):
    """A setting, a file or a port of this machine is wrong; its owner must correct it."""

    code: ClassVar[str] = "bad_configuration"
