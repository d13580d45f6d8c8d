"""Errors over HTTP: one table gives their status, and each interface their form.

The native interface answers

    {"error": {"code": "not_found", "message": "...", "cause": "...", "cure": "..."}}

`code` is for programs; `message` joins cause and cure for people. Other interfaces have the form
that their clients expect: a `ErrorFormat` for all paths with one of their prefixes.
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
from starlette.routing import Match

from coordinator.serving.common.keys import NoKey, NotAllowed, TooManyRequests
from protos.errors import (
    BadConfiguration,
    BadRequest,
    ImbrexError,
    Infeasible,
    NotFiniteAnswer,
    NotFound,
    Overloaded,
    PeerViolation,
    RequestAtFault,
    TooLittleMemory,
    Unavailable,
    Unsupported,
)

log = structlog.get_logger(__name__)

# Queues drain and daemons start within seconds, and a home's clients may retry that often.
RETRY_AFTER_S = 1
_NO_METHOD = HTTPStatus.METHOD_NOT_ALLOWED


class BodyTooLarge(BadRequest):
    """The body is longer than this coordinator accepts."""

    code: ClassVar[str] = "body_too_large"


class UnsupportedMediaType(BadRequest):
    """A body of this type cannot be used here."""

    code: ClassVar[str] = "unsupported_media_type"


class NotAcceptable(BadRequest):
    """The client accepts none of the types in which this answer can be given."""

    code: ClassVar[str] = "not_acceptable"


class IdReused(BadRequest):
    """The request's id is that of another request."""

    code: ClassVar[str] = "id_reused"


class SlowBody(BadRequest):
    """The body did not come in time."""

    code: ClassVar[str] = "slow_body"


Handler = Callable[[Request, Exception], Awaitable[Response]]

# The closest class in an error's ancestry decides; any other error is a fault inside imbrex.
STATUS: dict[type[ImbrexError], HTTPStatus] = {
    BodyTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    UnsupportedMediaType: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    NotAcceptable: HTTPStatus.NOT_ACCEPTABLE,
    IdReused: HTTPStatus.CONFLICT,
    SlowBody: HTTPStatus.REQUEST_TIMEOUT,
    Unsupported: HTTPStatus.NOT_IMPLEMENTED,
    NoKey: HTTPStatus.UNAUTHORIZED,
    NotAllowed: HTTPStatus.FORBIDDEN,
    BadRequest: HTTPStatus.BAD_REQUEST,
    NotFound: HTTPStatus.NOT_FOUND,
    Infeasible: HTTPStatus.UNPROCESSABLE_ENTITY,
    RequestAtFault: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotFiniteAnswer: HTTPStatus.UNPROCESSABLE_ENTITY,
    TooLittleMemory: HTTPStatus.SERVICE_UNAVAILABLE,
    TooManyRequests: HTTPStatus.TOO_MANY_REQUESTS,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    PeerViolation: HTTPStatus.BAD_GATEWAY,
    BadConfiguration: HTTPStatus.INTERNAL_SERVER_ERROR,
}


def status_of(error: ImbrexError) -> HTTPStatus:
    """The HTTP status of an error."""
    for ancestor in type(error).__mro__:
        if ancestor in STATUS:
            return STATUS[ancestor]
    return HTTPStatus.INTERNAL_SERVER_ERROR


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as it is reported to a client."""

    status: HTTPStatus
    code: str
    cause: str
    cure: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """Cause and cure."""
        return f"{self.cause.rstrip('.')}. {self.cure}"


ErrorFormat = Callable[[Fault], Response]


def own_shape(fault: Fault) -> Response:
    """The form of the native interface."""
    fields = {
        "code": fault.code,
        "message": fault.message,
        "cause": fault.cause,
        "cure": fault.cure,
    }
    return JSONResponse({"error": fields}, fault.status, fault.headers)


def fault_of(error: ImbrexError) -> Fault:
    """The fault for an error; a refusal for lack of capacity says when to try again."""
    status, headers = status_of(error), {}
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        wait_s = error.retry_after_s if isinstance(error, Overloaded) else 0.0
        headers["Retry-After"] = str(max(RETRY_AFTER_S, math.ceil(wait_s)))
    if status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Basic realm="imbrex, the key as password", charset="UTF-8"'
    if status is HTTPStatus.REQUEST_TIMEOUT:
        headers["Connection"] = "close"
    return Fault(status, error.code, error.cause, error.cure, headers)


def add_error_handlers(app: FastAPI, shapes: Mapping[str, ErrorFormat]) -> None:
    """Gives every error, including the framework's, the form of its path: that of the longest
    matching prefix in `shapes`, otherwise the native one.
    """

    def shaped(request: Request, fault: Fault) -> Response:
        path = request.url.path
        fitting = [prefix for prefix in shapes if path == prefix or path.startswith(f"{prefix}/")]
        return shapes[max(fitting, key=len)](fault) if fitting else own_shape(fault)

    def handler(fault: Callable[[Request, Any], Fault]) -> Handler:
        async def handle(request: Request, error: Exception) -> Response:
            # No other site's page may do anything: an answer to its question allows nothing.
            if request.method == "OPTIONS" and getattr(error, "status_code", 0) == _NO_METHOD:
                return Response(
                    None, HTTPStatus.NO_CONTENT, {"Allow": ", ".join((*_taken(request), "OPTIONS"))}
                )
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


def _taken(request: Request) -> list[str]:
    """The methods of all routes at the request's path."""
    routes = request.app.state.routes
    matching = (route for route in routes if route.matches(request.scope)[0] != Match.NONE)
    methods = {method for route in matching for method in route.methods}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


def _http(request: Request, error: HTTPException) -> Fault:
    """Routing's own errors: no such path, or a path that takes another method."""
    status, headers = HTTPStatus(error.status_code), error.headers or {}
    match status:
        case HTTPStatus.NOT_FOUND:
            cause = f"there is nothing at {request.url.path}"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            taken = _taken(request)
            cause = f"{request.url.path} does not take {request.method}, but {', '.join(taken)}"
            headers = {"Allow": ", ".join(taken)}
        case _:
            cause = str(error.detail)
    code = status.phrase.lower().replace(" ", "_").replace("-", "_")
    return Fault(status, code, cause, "See /docs", headers)


def _invalid(request: Request, error: RequestValidationError) -> Fault:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return Fault(status, "invalid_parameter", f"{where}: {first['msg']}", "See /docs")


def _disconnected(request: Request, error: ClientDisconnect) -> Fault:
    """Nobody reads this answer; it ends the request without an error in the log."""
    status = HTTPStatus.BAD_REQUEST
    return Fault(status, "client_disconnected", "the connection ended early", "Send it again")


def _unknown(request: Request, error: Exception) -> Fault:
    """A fault inside imbrex: the log has the details, the client gets none."""
    log.error("request failed", path=request.url.path, exc_info=error)
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    cause, cure = "something went wrong inside imbrex", "See the coordinator's log"
    return Fault(status, "internal", cause, cure)
