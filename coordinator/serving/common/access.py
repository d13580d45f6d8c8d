"""Who may call which route, and how often: API keys, and no orders from foreign web pages.

What a route takes is said above its function, over HTTP and gRPC alike: `asks` where nothing
changes but what a request would (a model that is loaded), `orders` where something does, and
`open_to_all`. A function that says nothing is for nobody but admins, and no application starts
with it.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from fastapi import Request
from starlette.datastructures import Headers

from coordinator.serving.common.codings import PLAIN, content_coding
from coordinator.serving.common.intake import BODY, Body
from coordinator.serving.common.keys import Key, Keys, NoKey, NotAllowed, Role
from coordinator.serving.common.origins import require_own_page
from coordinator.serving.common.rates import Rates, neighbourhood
from protos.errors import ImbrexError

FORM_FIELD = "api_key"

_RULE = "imbrex_rule"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a route takes: a key of this role, if any; `in_form`: which may come in a form's field
    `api_key`.
    """

    role: Role | None
    in_form: bool = False

    def __call__(self, endpoint: Endpoint) -> Endpoint:
        """Declares it of a route's function."""
        setattr(endpoint, _RULE, self)
        return endpoint


# Orchestrators and clients ask these before anybody gives them a key; they tell nothing else.
open_to_all = Rule(None)
asks = Rule(Role.INFER)
asks_by_form = Rule(Role.INFER, in_form=True)
orders = Rule(Role.ADMIN)


def rule_of(endpoint: object) -> Rule | None:
    """What the function of a route declares."""
    rule: Rule | None = getattr(endpoint, _RULE, None)
    return rule


class Access:
    """What all interfaces for clients ask before they answer."""

    def __init__(
        self, keys: Keys, per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.keys = keys
        self._rates = Rates(per_s)
        self._clock = clock

    def admit(self, shown: str | None, role: Role, host: str, *, counted: bool = True) -> str:
        """Lets a call from this address go on, with the key that it shows; as whom. One that is not
        `counted` has requests inside that are.

        Raises:
            NoKey, NotAllowed: it may not, with this key.
            TooManyRequests: not so often; also told to whoever guesses keys.
        """
        try:
            key = self.keys.require(shown, role)
        except ImbrexError:
            self._take(None, host)
            raise
        return self._take(key, host) if counted else _caller(key, host)

    def count(self, shown: str | None, host: str) -> None:
        """Takes account of a call whose key has been seen already.

        Raises:
            TooManyRequests: not so often.
        """
        self._take(self.keys.holder(shown), host)

    def _take(self, key: Key | None, host: str) -> str:
        caller = _caller(key, host)
        self._rates.take(caller, self._clock())
        return caller


async def guard(request: Request) -> None:
    """Runs before every route, and before a byte of the body is read.

    Raises:
        NoKey, NotAllowed, TooManyRequests: the caller may not.
    """
    rule = rule_of(request.scope["endpoint"]) or orders
    if rule.role is None:
        return
    require_own_page(request)
    shown = shown_key(request.headers)
    body: Body = request.scope[BODY]
    if shown is None and rule.in_form and _has_key_in_form(request):
        body.guest = True
        return
    body.caller = _require(request, shown, rule.role)


async def guard_form(request: Request, name: str, value: str) -> None:
    """Looks at a field of DeepStack's forms: at the key of a caller that has shown none yet.

    Raises:
        NoKey, NotAllowed, TooManyRequests: the caller may not.
    """
    body: Body = request.scope[BODY]
    if body.guest and name == FORM_FIELD:
        await body.admit(_require(request, value, Role.INFER))


def require_key_seen(request: Request) -> None:
    """Refuses a form that has come to its end without a key.

    Raises:
        NoKey: that it is.
    """
    body: Body = request.scope[BODY]
    if body.guest:
        _require(request, None, Role.INFER)


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
    """Whether the key may follow: while there are keys. A packed form has to be unpacked to be
    read: that is done for nobody who is unknown.
    """
    access: Access = request.app.state.access
    return content_coding(request.headers) == PLAIN and access.keys.in_use


def _require(request: Request, shown: str | None, role: Role) -> str:
    access: Access = request.app.state.access
    client = request.client.host if request.client else ""
    try:
        return access.admit(shown, role, client)
    except (NoKey, NotAllowed) as error:
        log.warning("client refused", client=client, path=request.url.path, cause=error.cause)
        raise


def _caller(key: Key | None, host: str) -> str:
    return f"key {key.name}" if key is not None else f"at {neighbourhood(host)}"
