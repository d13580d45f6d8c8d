"""Who may call which route, and how often: API keys, and protection against foreign web pages.

A decorator above a route's function declares its rule, over HTTP and gRPC alike: `asks` for what
changes nothing except by answering (such as loading a model), `orders` for what changes something,
and `open_to_all`. A function without a rule is for admins only, and no application starts with one.

A page of another site may have its reader's browser send requests here, with the login that the
browser remembers. Browsers report the page's site for requests that change something (`Origin`). A
page whose own name is made to resolve to this device (DNS rebinding) sends that name as `Host`, so
only names of this device are answered. Addresses are, too: an address cannot be made to resolve
elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import structlog
from cryptography import x509
from fastapi import Request
from starlette.datastructures import Headers

from coordinator.serving.common.body import BodyKind, body_of
from coordinator.serving.common.content import PLAIN
from coordinator.serving.common.keys import (
    Key,
    Keys,
    NoKey,
    NotAllowed,
    RateLimiter,
    Role,
)
from coordinator.settings import CoordinatorSettings
from protos.errors import ImbrexError

_PORTS = {"http": 80, "https": 443}
READING = frozenset({"GET", "HEAD", "OPTIONS"})
# A device with a new name, or in another network, is found under its new name this soon.
_KEEP_S = 60.0
_RESOLVER = Path("/etc/resolv.conf")


class HostNames:
    """The names of this coordinator: its device's, and those that the operator adds; among them
    those of reverse `proxies`.
    """

    def __init__(
        self,
        added: Iterable[str],
        proxies: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._added = frozenset(_plain(name) for name in added)
        self._proxies = frozenset(_plain(name) for name in proxies)
        self._clock = clock
        self._own: frozenset[str] = frozenset()
        self._looked_s = -_KEEP_S

    def __contains__(self, host: str) -> bool:
        name = _plain(host)
        with suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        if name in self._added:
            return True
        if self._clock() - self._looked_s >= _KEEP_S:
            self._own, self._looked_s = frozenset(device_names()), self._clock()
        return name in self._own

    def is_of_proxy(self, host: str) -> bool:
        """Whether the operator said that pages under this name are the coordinator's, behind
        whatever port and TLS.
        """
        return _plain(host) in self._proxies


def require_own_page(request: Request) -> None:
    """Refuses requests for other host names, and from pages of other sites.

    Raises:
        NotAllowed: `Host` is not a name of this coordinator, or the origin is another site.
    """
    host = request.headers.get("host", "")
    name = host.partition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    names: HostNames = request.app.state.host_names
    if host and name not in names:
        raise NotAllowed(
            cause=f"this coordinator is not known by the name {name[:80]!r}, but as "
            f"{device_names()[2]!r}",
            cure="Use its address or its own name, or add that name to host_names in its "
            "settings (`imbrex coordinator --host-name`)",
        )

    origin = request.headers.get("origin")
    if request.method in READING or origin is None:
        return
    own = f"{request.url.scheme}://{host}"
    page = _site(origin)
    if page is None or (page != _site(own) and not names.is_of_proxy(page[1])):
        raise NotAllowed(
            cause=f"a page from {origin[:80]} sent this to {own[:80]}",
            cure="Use the coordinator's own page; if that is behind a reverse proxy, add the "
            "proxy's name to host_names in the coordinator's settings",
        )


def _site(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an origin; None if it has none, as `null`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname:
        return None
    return parts.scheme, _plain(parts.hostname), port or _PORTS[parts.scheme]


def device_names() -> tuple[str, ...]:
    """This device's name alone, in mDNS, and in the domains of its network."""
    full = socket.gethostname().lower()
    host = full.partition(".")[0]
    domains = (f"{host}.{domain}" for domain in _search_domains())
    return (full, host, f"{host}.local", "localhost", *domains)


def names_in(certificate: Path | None) -> tuple[str, ...]:
    """The names in a PEM certificate for clients; none if it cannot be read, which is reported when
    it is used.
    """
    try:
        loaded = x509.load_pem_x509_certificate(certificate.read_bytes()) if certificate else None
        if loaded is None:
            return ()
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return tuple(names.value.get_values_for_type(x509.DNSName))
    except (OSError, ValueError, x509.ExtensionNotFound):
        return ()


def _search_domains() -> list[str]:
    try:
        lines = _RESOLVER.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    words = [line.split() for line in lines]
    return [
        domain.strip(".").lower()
        for found in words
        if found and found[0] in ("search", "domain")
        for domain in found[1:]
    ]


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")


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

    def admit(self, shown: str | None, role: Role, address: str, *, counted: bool = True) -> str:
        """Admits a call from this address (`neighbourhood`) with the key that it shows; returns the
        caller's name. A call that is not `counted` contains requests that are counted themselves.

        Raises:
            NoKey, NotAllowed: the key is missing or does not permit this.
            TooManyRequests: too many calls; also told to callers that guess keys.
        """
        try:
            key = self.keys.require(shown, role)
        except ImbrexError:
            self._rates.take(_caller(None, address), self._clock())
            raise
        caller = _caller(key, address)
        if counted:
            self._rates.take(caller, self._clock())
        return caller

    def count(self, shown: str | None, address: str) -> None:
        """Counts a call whose key was checked before.

        Raises:
            TooManyRequests: too many calls.
        """
        self._rates.take(_caller(self.keys.holder(shown), address), self._clock())


async def guard(request: Request) -> None:
    """Runs before every route, before any of the body is read, and sets the body's limit.

    Raises:
        NoKey, NotAllowed, TooManyRequests: the caller is refused.
    """
    rule = rule_of(request.scope["endpoint"]) or orders
    body = body_of(request)
    body.kind = rule.body or BodyKind.NONE
    settings: CoordinatorSettings = request.app.state.coordinator.settings
    if body.kind is not BodyKind.NONE:
        body.limit_bytes = settings.max_body_bytes
    if body.kind is BodyKind.JSON:
        body.limit_bytes = min(settings.max_json_bytes, settings.max_body_bytes)
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
    return body_of(request).coding == PLAIN and access.keys.in_use


def _require(request: Request, shown: str | None, role: Role) -> str:
    access: Access = request.app.state.access
    try:
        return access.admit(shown, role, body_of(request).address)
    except (NoKey, NotAllowed) as error:
        client = request.client.host if request.client else ""
        log.warning("client refused", client=client, path=request.url.path, cause=error.cause)
        raise


def _caller(key: Key | None, address: str) -> str:
    return f"at {address}" if key is None else f"key {key.name}"
