"""Why a task or a program failed: the codes of `TaskFailed`, as branches of the one root."""

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
    """The engine failed for a reason of its own."""

    code: ClassVar[str] = "runtime"


class NoOutput(NotFound):
    """The outputs asked for are not kept here (any more)."""

    code: ClassVar[str] = "no_output"


class SendFailed(Unavailable):
    """A peer could not be reached."""

    code: ClassVar[str] = "send"


class NotFinite(ImbrexError):
    """A result holds NaN or infinity. The host judges whether that is the model's own doing or
    this device's; peers can't, and a Relu of NaN may look sound.
    """

    code: ClassVar[str] = "not_finite"
