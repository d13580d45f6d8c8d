"""Who may call which route: API keys, and no orders from foreign web pages.

A route that changes nothing, or answers a request, takes the role infer; any other takes admin.
"""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import urlsplit

import structlog
from fastapi import Request
from starlette.datastructures import FormData, Headers

from coordinator.keys import Keys, NotAllowed, Role
from coordinator.serving.deepstack.answers import PREFIXES as DEEPSTACK
from protos.errors import ImbrexError

# Orchestrators and clients ask these before anybody gives them a key; they tell nothing else.
OPEN = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/v1/status/ping"})
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
# What is sent with POST and changes nothing.
_ASKING = re.compile(
    r"/v1/models/[^/]+/infer|/v2/models/[^/]+(/versions/[^/]+)?/infer|/v2/repository(/[^/]+)?/index"
)
FORM_FIELD = "api_key"

log = structlog.get_logger(__name__)


async def guard(request: Request) -> None:
    """Runs before every route.

    Raises:
        NoKey, NotAllowed: the caller may not.
    """
    _require_own_page(request)
    path = request.url.path
    if path in OPEN:
        return
    keys: Keys = request.app.state.keys
    shown = shown_key(request.headers)
    if shown is None and _has_key_in_form(request):
        return
    _require(request, keys, shown, role_of(request.method, path))


def guard_form(request: Request, form: FormData) -> None:
    """The second look at DeepStack's calls, which may carry their key in the form.

    Raises:
        NoKey, NotAllowed: the caller may not.
    """
    shown = shown_key(request.headers)
    if shown is None:
        field = form.get(FORM_FIELD)
        shown = field if isinstance(field, str) and field else None
    _require(request, request.app.state.keys, shown, Role.INFER)


def role_of(method: str, path: str) -> Role:
    """What a call takes."""
    asks = method == "POST" and (_ASKING.fullmatch(path) or _of_deepstack(path))
    return Role.INFER if method in _READING or asks else Role.ADMIN


def shown_key(headers: Headers) -> str | None:
    """The key among the headers: as a bearer token, as `X-API-Key`, or as the password of HTTP's
    own login, which browsers ask their user for.
    """
    own = headers.get("x-api-key")
    if own:
        return own
    scheme, _, value = headers.get("authorization", "").partition(" ")
    match scheme.lower():
        case "bearer":
            return value.strip()
        case "basic":
            return _password(value.strip())
        case _:
            return None


def _password(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _has_key_in_form(request: Request) -> bool:
    """Whether `guard_form` will look: the routes that read a form."""
    return (
        request.method == "POST"
        and _of_deepstack(request.url.path)
        and not (request.url.path.endswith("/list"))
    )


def _of_deepstack(path: str) -> bool:
    return path.startswith(tuple(f"{prefix}/" for prefix in DEEPSTACK))


def _require(request: Request, keys: Keys, shown: str | None, role: Role) -> None:
    try:
        keys.require(shown, role)
    except ImbrexError as error:
        caller = request.client.host if request.client else ""
        log.warning("client refused", client=caller, path=request.url.path, cause=error.cause)
        raise


def _require_own_page(request: Request) -> None:
    """A page of another site may make its reader's browser send things here, with the login that
    it remembers: browsers say where such a request comes from.

    Raises:
        NotAllowed: it comes from elsewhere.
    """
    origin = request.headers.get("origin")
    if request.method in _READING or origin is None:
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise NotAllowed(
            cause=f"a page of {origin} sent this", cure="Use the coordinator's own page"
        )
