"""Who may call which route, and how often: API keys, and protection against foreign web pages.

A decorator above a route's function declares its rule, over HTTP and gRPC alike: `asks` for what
changes nothing except by answering (such as loading a model), `orders` for what changes something,
and `open_to_all`. A function without a rule is for admins only, and no application starts with one.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog
from fastapi import Request
from starlette.datastructures import Headers

from coordinator.serving.common.body import BodyKind, body_of
from coordinator.serving.common.content import PLAIN, content_coding
from coordinator.serving.common.keys import Key, Keys, NoKey, NotAllowed, Role
from coordinator.serving.common.origins import require_own_page
from coordinator.serving.common.rate_limit import RateLimiter, neighbourhood
from coordinator.settings import CoordinatorSettings
from protos.errors import ImbrexError

FORM_FIELD = "api_key"

_RULE = "imbrex_rule"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AccessRule:
    """What a route requires: a key of this role, if there are keys; `in_form`: the key may come in
    a form's field `api_key`. `body` is what it takes; routes that may have one (POST, PUT) have to
    say it.
    """

    role: Role | None
    in_form: bool = False
    body: BodyKind | None = None

    def taking(self, body: BodyKind) -> AccessRule:
        """The same rule for a route with such a body."""
        return replace(self, body=body)

    def __call__(self, endpoint: Endpoint) -> Endpoint:
        """Declares the rule for a route's function."""
        setattr(endpoint, _RULE, self)
        return endpoint


# Orchestrators and clients call these before they are given a key; they reveal nothing else.
open_to_all = AccessRule(None)
asks = AccessRule(Role.INFER)
asks_by_form = AccessRule(Role.INFER, in_form=True)
orders = AccessRule(Role.ADMIN)


def rule_of(endpoint: object) -> AccessRule | None:
    """The rule that a route's function declares."""
    rule: AccessRule | None = getattr(endpoint, _RULE, None)
    return rule


class Access:
    """Checks callers, for all interfaces, before anything is answered."""

    def __init__(
        self, keys: Keys, per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.keys = keys
        self._rates = RateLimiter(per_s)
        self._clock = clock

    def admit(self, shown: str | None, role: Role, host: str, *, counted: bool = True) -> str:
        """Admits a call from this address with the key that it shows; returns the caller's name. A
        call that is not `counted` contains requests that are counted themselves.

        Raises:
            NoKey, NotAllowed: the key is missing or does not permit this.
            TooManyRequests: too many calls; also told to callers that guess keys.
        """
        try:
            key = self.keys.require(shown, role)
        except ImbrexError:
            self._take(None, host)
            raise
        return self._take(key, host) if counted else _caller(key, host)

    def count(self, shown: str | None, host: str) -> None:
        """Counts a call whose key was checked before.

        Raises:
            TooManyRequests: too many calls.
        """
        self._take(self.keys.holder(shown), host)

    def _take(self, key: Key | None, host: str) -> str:
        caller = _caller(key, host)
        self._rates.take(caller, self._clock())
        return caller


async def guard(request: Request) -> None:
    """Runs before every route, before any of the body is read, and sets the body's limit.

    Raises:
        NoKey, NotAllowed, TooManyRequests: the caller is refused.
    """
    rule = rule_of(request.scope["endpoint"]) or orders
    body = body_of(request)
    body.kind = rule.body or BodyKind.NONE
    body.limit_bytes = _limit_bytes(body.kind, request.app.state.coordinator.settings)
    if body.kind is BodyKind.NONE and rule.role is not Role.ADMIN:
        body.expect_nothing()  # an order that was given is carried out
    if rule.role is None:
        return
    require_own_page(request)
    shown = shown_key(request.headers)
    if shown is None and rule.in_form and _has_key_in_form(request):
        body.guest = True
        return
    body.caller = _require(request, shown, rule.role)


async def guard_form(request: Request, name: str, value: str) -> None:
    """Checks the key in a field of DeepStack's forms, if the caller has shown none yet.

    Raises:
        NoKey, NotAllowed, TooManyRequests: the caller is refused.
    """
    body = body_of(request)
    if body.guest and name == FORM_FIELD:
        await body.admit(_require(request, value, Role.INFER))


def require_key_seen(request: Request) -> None:
    """Refuses a form that ended without a key.

    Raises:
        NoKey: there was none.
    """
    body = body_of(request)
    if body.guest:
        _require(request, None, Role.INFER)


def shown_key(headers: Headers) -> str | None:
    """The key in the headers: a bearer token, `X-API-Key`, or the password of HTTP basic
    authentication, which browsers ask their user for.
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


def _limit_bytes(kind: BodyKind, settings: CoordinatorSettings) -> int:
    match kind:
        case BodyKind.NONE:
            return 0
        case BodyKind.JSON:
            return min(settings.max_json_bytes, settings.max_body_bytes)
        case BodyKind.DATA:
            return settings.max_body_bytes


def _password(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _has_key_in_form(request: Request) -> bool:
    """Whether the key may still come in the form. Not in a compressed form: the coordinator does
    not decompress for unknown callers.
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
