"""Why a task or a program failed: the codes of `TaskFailed` as classes of errors."""

from typing import ClassVar

from protos.errors import BadRequest, ImbrexError, NotFound, Unavailable


class OutOfMemory(Unavailable):
    """It does not fit the memory that this worker may use."""

    code: ClassVar[str] = "out_of_memory"


class BadInput(BadRequest):
    """The task or its tensors do not fit the program."""

    code: ClassVar[str] = "bad_input"


class NoProgram(NotFound):
    """The task names a program that was never prepared here, or was dropped."""

    code: ClassVar[str] = "no_program"


class RunError(ImbrexError):
    """The engine failed."""

    code: ClassVar[str] = "runtime"


class NoOutput(NotFound):
    """The requested outputs are not, or no longer, kept here."""

    code: ClassVar[str] = "no_output"


class SendFailed(Unavailable):
    """A peer could not be reached."""

    code: ClassVar[str] = "send"


class NotFinite(ImbrexError):
    """A result holds NaN or infinity. The host decides whether the model or this device is the
    cause; peers cannot, as a Relu of NaN may look sound.
    """

    code: ClassVar[str] = "not_finite"
