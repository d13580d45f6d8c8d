"""Everything that goes wrong over HTTP has one shape, and one table gives its status.

    {"error": {"code": "not_found", "message": "...", "cause": "...", "cure": "..."}}

`code` is for programs; `message` is cause and cure in one sentence for people.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from protos.errors import (
    BadConfiguration,
    BadRequest,
    ImbrexError,
    Infeasible,
    NotFound,
    PeerViolation,
    Unavailable,
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


# The closest class in an error's ancestry decides; anything else is a fault of ours.
STATUS: dict[type[ImbrexError], HTTPStatus] = {
    BodyTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    UnsupportedMediaType: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    NotAcceptable: HTTPStatus.NOT_ACCEPTABLE,
    BadRequest: HTTPStatus.BAD_REQUEST,
    NotFound: HTTPStatus.NOT_FOUND,
    Infeasible: HTTPStatus.UNPROCESSABLE_ENTITY,
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


def error_body(error: ImbrexError) -> dict[str, dict[str, str]]:
    """The one shape."""
    return _body(error.code, error.cause, error.cure)


def add_error_handlers(app: FastAPI) -> None:
    """Makes the framework's own errors follow the shape too."""
    app.add_exception_handler(ImbrexError, _on_known)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_unknown)


async def _on_known(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ImbrexError)
    status = status_of(error)
    busy = status is HTTPStatus.SERVICE_UNAVAILABLE
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not busy:
        log.warning("request failed", path=request.url.path, code=error.code, cause=error.cause)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if busy else None
    return JSONResponse(error_body(error), status, headers)


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    """Routing's own errors: no such path, or a path that takes another method."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    match status:
        case HTTPStatus.NOT_FOUND:
            cause = f"there is nothing at {request.url.path}"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            cause = f"{request.url.path} does not take {request.method}"
        case _:
            cause = str(error.detail)
    code = status.phrase.lower().replace(" ", "_").replace("-", "_")
    return JSONResponse(_body(code, cause, "See /docs"), status, error.headers)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    body = _body("invalid_parameter", f"{where}: {first['msg']}", "See /docs")
    return JSONResponse(body, HTTPStatus.UNPROCESSABLE_ENTITY)


async def _on_disconnect(request: Request, error: Exception) -> JSONResponse:
    """Nobody reads this answer; it only ends the request without an alarm."""
    del request, error
    body = _body("client_disconnected", "the connection ended early", "Send it again")
    return JSONResponse(body, HTTPStatus.BAD_REQUEST)


async def _on_unknown(request: Request, error: Exception) -> JSONResponse:
    """A fault of ours: the log has the details, the caller gets none of them."""
    log.error("request failed", path=request.url.path, exc_info=error)
    body = _body("internal", "something went wrong inside imbrex", "See the coordinator's log")
    return JSONResponse(body, HTTPStatus.INTERNAL_SERVER_ERROR)


def _body(code: str, cause: str, cure: str) -> dict[str, dict[str, str]]:
    message = f"{cause.rstrip('.')}. {cure}"
    return {"error": {"code": code, "message": message, "cause": cause, "cure": cure}}
