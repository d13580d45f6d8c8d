"""Protection against other web pages: the origin of a browser's request, and the name it uses for
us.

A page of another site may have its reader's browser send requests here, with the login that the
browser remembers. Browsers report the page's site for requests that change something (`Origin`). A
page whose own name is made to resolve to this device (DNS rebinding) sends that name as `Host`, so
only names of this device are answered. Addresses are, too: an address cannot be made to resolve
elsewhere.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from fastapi import Request

from coordinator.serving.common.keys import NotAllowed

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
        if _is_address(name) or name in self._added:
            return True
        if self._clock() - self._looked_s >= _KEEP_S:
            self._own, self._looked_s = frozenset(device_names()), self._clock()
        return name in self._own

    def is_of_proxy(self, host: str) -> bool:
        """Whether the operator said that pages under this name are the coordinator's, behind
        whatever port and TLS.
        """
        return _plain(host) in self._proxies


def require_known_host(request: Request) -> None:
    """Refuses requests for other host names.

    Raises:
        NotAllowed: `Host` is not a name of this coordinator.
    """
    host = request.headers.get("host", "")
    names: HostNames = request.app.state.host_names
    if host and _without_port(host) not in names:
        raise NotAllowed(
            cause=f"this coordinator is not known by the name {_without_port(host)[:80]!r}, but as "
            f"{device_names()[2]!r}",
            cure="Use its address or its own name, or add that name to host_names in its "
            "settings (`imbrex coordinator --host-name`)",
        )


def require_own_page(request: Request) -> None:
    """Refuses requests from pages of other sites.

    Raises:
        NotAllowed: the origin is another site.
    """
    require_known_host(request)
    origin = request.headers.get("origin")
    if request.method in READING or origin is None:
        return
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    names: HostNames = request.app.state.host_names
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
        told = urlsplit(url)
        port = told.port
    except ValueError:
        return None
    if told.scheme not in _PORTS or not told.hostname:
        return None
    return told.scheme, _plain(told.hostname), port or _PORTS[told.scheme]


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
        found = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return tuple(found.value.get_values_for_type(x509.DNSName))
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


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0][1:]
    return host.partition(":")[0]


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
