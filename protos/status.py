"""Our errors as gRPC statuses, and back: one table for every daemon.

The status carries the readable sentence; the trailing metadata carries code, cause and cure as
JSON, from which the caller raises the same class with the same fields.
"""

import asyncio
import json
from typing import Any, NoReturn

import grpc
import grpc.aio

from protos.errors import (
    BadConfiguration,
    BadRequest,
    ImbrexError,
    Infeasible,
    LostWorker,
    NotFiniteAnswer,
    NotFound,
    PeerViolation,
    Unavailable,
    Unsupported,
)

_ERROR_KEY = "imbrex-error-bin"

_STATUS: dict[type[ImbrexError], grpc.StatusCode] = {
    BadRequest: grpc.StatusCode.INVALID_ARGUMENT,
    Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    PeerViolation: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Infeasible: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    LostWorker: grpc.StatusCode.UNAVAILABLE,
    NotFiniteAnswer: grpc.StatusCode.FAILED_PRECONDITION,
    BadConfiguration: grpc.StatusCode.FAILED_PRECONDITION,
}
_CLASSES = {kind.code: kind for kind in _STATUS}


async def abort(context: "grpc.aio.ServicerContext[Any, Any]", error: ImbrexError) -> NoReturn:
    """Ends the call with the error's status."""
    status, text, trailing = status_of(error)
    await context.abort(status, text, trailing)
    raise AssertionError("abort returned")


def fail(context: "grpc.aio.ServicerContext[Any, Any]", error: ImbrexError) -> None:
    """Sets the error's status on the call, whatever its method returns. Unlike `abort`, this raises
    nothing that would keep the call and its message alive.
    """
    status, text, trailing = status_of(error)
    context.set_code(status)
    context.set_details(text)
    context.set_trailing_metadata(trailing)


def status_of(error: ImbrexError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """The status of an error, its sentence, and the trailing metadata."""
    branch = next((kind for kind in type(error).__mro__ if kind in _STATUS), None)
    status = _STATUS[branch] if branch else grpc.StatusCode.INTERNAL
    code = branch.code if branch else error.code
    fields = {"code": code, "cause": error.cause, "cure": error.cure}
    if isinstance(error, PeerViolation) and error.request:
        fields["request"] = error.request
    return status, str(error), ((_ERROR_KEY, json.dumps(fields).encode()),)


def error_from(failure: grpc.aio.AioRpcError, address: str) -> ImbrexError:
    """The error behind a failed call to `address`: the worker's own where it sent one."""
    trailing: Any = failure.trailing_metadata() or ()
    for key, value in trailing:
        if key == _ERROR_KEY:
            return _own(bytes(value))
    details = failure.details() or failure.code().name
    if failure.code() is grpc.StatusCode.UNAUTHENTICATED:
        return BadConfiguration(cause=f"{address} refused us: {details}", cure=_PROVE)
    for sign, cause, cure in _TLS:
        if sign in details:
            return BadConfiguration(cause=f"{address} is not used: {cause}", cure=cure)
    if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
        return PeerViolation(
            cause=f"{address} does not know this call", cure="Run the same version everywhere"
        )
    return LostWorker(
        cause=f"no answer from {address}: {_short(details)}",
        cure="Check that the device is on and that its worker is running",
    )


def _short(details: str) -> str:
    """gRPC's report without the attempts that led to it: `Connection refused (111)`."""
    _, is_nested, last = details.rpartition("last error: ")
    return last.rpartition(": ")[2] if is_nested else details


_PROVE = "Set the same secret on every daemon, or enrol this one (`imbrex cluster invite`)"
_ENROL = "Enrol that device in this cluster (`imbrex cluster invite`)"

# What gRPC's TLS reports when it rejects the server's certificate. If the server rejects ours, the
# connection just closes; the reason is in the server's log.
_TLS = (
    (
        "certificate has expired",
        "its certificate has expired",
        "Check that the clocks of both devices are right (`timedatectl`); if they are, " + _ENROL,
    ),
    (
        "certificate is not yet valid",
        "its certificate is not valid yet",
        "Set the clock of this device (`timedatectl`)",
    ),
    ("Hostname Verification", "another device answers at this address", _ENROL),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS", _ENROL),
    ("certificate", "its certificate is of another cluster", _ENROL),
)


def _own(data: bytes) -> ImbrexError:
    try:
        fields = json.loads(data)
        kind = _CLASSES.get(fields["code"], ImbrexError)
        error = kind(cause=str(fields["cause"]), cure=str(fields["cure"]))
        if isinstance(error, PeerViolation):
            error.request = str(fields.get("request", ""))
        return error
    except (ValueError, KeyError, TypeError):
        return PeerViolation(cause="a peer sent an error that cannot be read")


# What reading and writing raise when either side has ended the call.
STREAM_ENDED = (
    grpc.aio.AioRpcError,
    grpc.aio.UsageError,
    asyncio.InvalidStateError,
    asyncio.CancelledError,
)


def own_cancellation() -> bool:
    """Whether the running task is being cancelled, rather than only the call it waits for: gRPC
    reports both as CancelledError.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
