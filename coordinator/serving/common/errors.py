"""Everything that goes wrong over HTTP: one table gives its status, each surface its shape.

Our own surface says

    {"error": {"code": "not_found", "message": "...", "cause": "...", "cure": "..."}}

`code` is for programs; `message` is cause and cure in one sentence for people. Other surfaces say
it as their clients expect: a `Shape` for every path that begins with a prefix of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from coordinator.serving.common.keys import NoKey, NotAllowed
from coordinator.serving.common.rates import TooManyRequests
from protos.errors import (
    BadConfiguration,
    BadRequest,
    ImbrexError,
    Infeasible,
    NotFound,
    Overloaded,
    PeerViolation,
    Unavailable,
    Unsupported,
)

log = structlog.get_logger(__name__)

# A queue drains and a daemon starts within seconds; clients of a home can ask that often.
RETRY_AFTER_S = 1


class BodyTooLarge(BadRequest):
    """The body is longer than this coordinator takes."""

    code: ClassVar[str] = "body_too_large"


class UnsupportedMediaType(BadRequest):
    """The body is of a type that cannot be used here."""

    code: ClassVar[str] = "unsupported_media_type"


class NotAcceptable(BadRequest):
    """The caller accepts no type that this answer can be given in."""

    code: ClassVar[str] = "not_acceptable"


class SlowBody(BadRequest):
    """The body did not come in time."""

    code: ClassVar[str] = "slow_body"


Handler = Callable[[Request, Exception], Awaitable[Response]]

# The closest class in an error's ancestry decides; anything else is a fault of ours.
STATUS: dict[type[ImbrexError], HTTPStatus] = {
    BodyTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    UnsupportedMediaType: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    NotAcceptable: HTTPStatus.NOT_ACCEPTABLE,
    SlowBody: HTTPStatus.REQUEST_TIMEOUT,
    Unsupported: HTTPStatus.NOT_IMPLEMENTED,
    NoKey: HTTPStatus.UNAUTHORIZED,
    NotAllowed: HTTPStatus.FORBIDDEN,
    BadRequest: HTTPStatus.BAD_REQUEST,
    NotFound: HTTPStatus.NOT_FOUND,
    Infeasible: HTTPStatus.UNPROCESSABLE_ENTITY,
    TooManyRequests: HTTPStatus.TOO_MANY_REQUESTS,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    PeerViolation: HTTPStatus.BAD_GATEWAY,
    BadConfiguration: HTTPStatus.INTERNAL_SERVER_ERROR,
}


def status_of(error: ImbrexError) -> HTTPStatus:
    """The HTTP status of one of our errors."""
    for ancestor in type(error).__mro__:
        if ancestor in STATUS:
            return STATUS[ancestor]
    return HTTPStatus.INTERNAL_SERVER_ERROR


@dataclass(frozen=True, slots=True)
class Fault:
    """An error on its way to a caller."""

    status: HTTPStatus
    code: str
    cause: str
    cure: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """Cause and cure."""
        return f"{self.cause.rstrip('.')}. {self.cure}"


Shape = Callable[[Fault], Response]


def own_shape(fault: Fault) -> Response:
    """The shape of our own surface."""
    fields = {
        "code": fault.code,
        "message": fault.message,
        "cause": fault.cause,
        "cure": fault.cure,
    }
    return JSONResponse({"error": fields}, fault.status, fault.headers)


def fault_of(error: ImbrexError) -> Fault:
    """One of our errors; a caller who is too early is told when to come back."""
    status, headers = status_of(error), {}
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        wait_s = error.retry_after_s if isinstance(error, Overloaded) else 0.0
        headers["Retry-After"] = str(max(RETRY_AFTER_S, math.ceil(wait_s)))
    if status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Basic realm="imbrex, the key as password", charset="UTF-8"'
    if status is HTTPStatus.REQUEST_TIMEOUT:
        headers["Connection"] = "close"
    return Fault(status, error.code, error.cause, error.cure, headers)


def add_error_handlers(app: FastAPI, shapes: Mapping[str, Shape]) -> None:
    """Makes every error, the framework's own too, follow the shape of its path: the longest prefix
    in `shapes`, else our own.
    """

    def shaped(request: Request, fault: Fault) -> Response:
        path = request.url.path
        fitting = [prefix for prefix in shapes if path == prefix or path.startswith(f"{prefix}/")]
        return shapes[max(fitting, key=len)](fault) if fitting else own_shape(fault)

    def handler(fault: Callable[[Request, Any], Fault]) -> Handler:
        async def handle(request: Request, error: Exception) -> Response:
            return shaped(request, fault(request, error))

        return handle

    app.add_exception_handler(ImbrexError, handler(_known))
    app.add_exception_handler(HTTPException, handler(_http))
    app.add_exception_handler(RequestValidationError, handler(_invalid))
    app.add_exception_handler(ClientDisconnect, handler(_disconnected))
    app.add_exception_handler(Exception, handler(_unknown))


def _known(request: Request, error: ImbrexError) -> Fault:
    fault = fault_of(error)
    ours = fault.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if ours and fault.status is not HTTPStatus.SERVICE_UNAVAILABLE:
        log.warning("request failed", path=request.url.path, code=error.code, cause=error.cause)
    return fault


def _http(request: Request, error: HTTPException) -> Fault:
    """Routing's own errors: no such path, or a path that takes another method."""
    status = HTTPStatus(error.status_code)
    match status:
        case HTTPStatus.NOT_FOUND:
            cause = f"there is nothing at {request.url.path}"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            cause = f"{request.url.path} does not take {request.method}"
        case _:
            cause = str(error.detail)
    code = status.phrase.lower().replace(" ", "_").replace("-", "_")
    return Fault(status, code, cause, "See /docs", error.headers or {})


def _invalid(request: Request, error: RequestValidationError) -> Fault:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return Fault(status, "invalid_parameter", f"{where}: {first['msg']}", "See /docs")


def _disconnected(request: Request, error: ClientDisconnect) -> Fault:
    """Nobody reads this answer; it only ends the request without an alarm."""
    status = HTTPStatus.BAD_REQUEST
    return Fault(status, "client_disconnected", "the connection ended early", "Send it again")


def _unknown(request: Request, error: Exception) -> Fault:
    """A fault of ours: the log has the details, the caller gets none of them."""
    log.error("request failed", path=request.url.path, exc_info=error)
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    cause, cure = "something went wrong inside imbrex", "See the coordinator's log"
    return Fault(status, "internal", cause, cure)
