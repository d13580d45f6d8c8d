"""Callers: their API keys, stored as hashes, each with a role; and how often they may call.

Without any key, everybody who can reach the port may do everything; once there is one, nobody may
do anything without a key. Every key, or address without one, has a token bucket. It holds what
`BURST_S` seconds bring, and gains `per_s` tokens a second; every request takes one (the committed
rate and burst of RFC 2697).
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from coordinator.trust.cluster_state import KEYS, ClusterState, Entries
from protos.errors import BadRequest, Infeasible, NotFound, Overloaded
from protos.trust.identity import secret_hash

# One per client of a home; each request is compared with all of them.
MAX_KEYS = 64
_SECRET_BYTES = 24
_PREFIX = "imbrex_"  # lets scanners for leaked secrets recognise one
# A page opens with a dozen files at once, and a camera's detections come in bursts.
BURST_S = 2.0
# Dropping a bucket refills it, so there are more than a home has callers; 100 kB in total.
MAX_CALLERS = 1024
# The IPv6 prefix of one subscriber (RFC 6177), who controls all of its addresses.
_IPV6_PREFIX = 64


class Role(StrEnum):
    """What a key permits: to read and send requests, or also to change things."""

    INFER = "infer"
    ADMIN = "admin"


class NoKey(BadRequest):
    """The caller showed no key, or an unknown one."""

    code: ClassVar[str] = "no_key"


class NotAllowed(BadRequest):
    """The caller's key does not permit this."""

    code: ClassVar[str] = "not_allowed"


@dataclass(frozen=True, slots=True)
class Key:
    """A key without its secret."""

    name: str
    role: Role


class Keys:
    """The keys of the cluster; the daemon notices the changes of the command line."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def all(self) -> list[Key]:
        """Every key."""
        return [Key(name, Role(entry["role"])) for name, entry in self._state.entries(KEYS).items()]

    def add(self, name: str, role: Role) -> str:
        """Adds a key; returns its secret, which is not stored.

        Raises:
            BadRequest: the name is taken.
            Infeasible: there are too many keys.
        """
        secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)

        def put(entries: Entries) -> None:
            if name in entries:
                raise BadRequest(
                    cause=f"there is already a key called {name!r}",
                    cure=f"Revoke it (`imbrex cluster revoke {name}`), or choose another name",
                )
            if len(entries) >= MAX_KEYS:
                raise Infeasible(
                    cause=f"there are {MAX_KEYS} keys", cure="Revoke one: `imbrex cluster revoke`"
                )
            entries[name] = {"sha256": secret_hash(secret), "role": role.value}

        self._state.change((KEYS,), put)
        return secret

    def remove(self, name: str) -> None:
        """Revokes a key at once.

        Raises:
            NotFound: there is no key with this name.
        """

        def pop(entries: Entries) -> None:
            if entries.pop(name, None) is None:
                known = ", ".join(entries) or "none"
                raise NotFound(cause=f"no key is called {name!r}", cure=f"Known keys: {known}")

        self._state.change((KEYS,), pop)

    @property
    def in_use(self) -> bool:
        """Whether there is any key."""
        return bool(self._state.entries(KEYS))

    def holder(self, shown: str | None) -> Key | None:
        """The key with this secret; None if it is unknown. Hashes are compared in constant time,
        and with all keys.
        """
        shown_hash = secret_hash(shown or "")
        held = [
            Key(name, Role(entry["role"]))
            for name, entry in self._state.entries(KEYS).items()
            if hmac.compare_digest(str(entry["sha256"]), shown_hash)
        ]
        return held[0] if held else None

    def require(self, shown: str | None, role: Role) -> Key | None:
        """Checks that the key permits the role, and returns the key; None if there are no keys.

        Raises:
            NoKey: the key is missing or unknown.
            NotAllowed: its role is not sufficient.
        """
        if not self._state.entries(KEYS):
            return None
        held = self.holder(shown)
        if held is None:
            raise NoKey(
                cause="an unknown API key was sent" if shown else "no API key was sent",
                cure="Send one as `Authorization: Bearer KEY` or `X-API-Key: KEY`; "
                "`imbrex cluster key` makes one",
            )
        if role is Role.ADMIN and held.role is not Role.ADMIN:
            raise NotAllowed(
                cause="this key may send requests and read, but not change anything",
                cure="Use a key with the role admin",
            )
        return held


class TooManyRequests(Overloaded):
    """This caller sends requests more often than allowed."""

    code: ClassVar[str] = "too_many_requests"


class RateLimiter:
    """Buckets by caller; with `per_s` 0 there is no limit."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._most = max(1.0, per_s * BURST_S)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, at

    def take(self, caller: str, now: float) -> None:
        """Takes a token for one request; `now` is a monotonic time in seconds.

        Raises:
            TooManyRequests: the bucket is empty.
        """
        if not self._per_s:
            return
        tokens, at = self._buckets.pop(caller, (self._most, now))
        tokens = min(self._most, tokens + (now - at) * self._per_s)
        allowed = tokens >= 1.0
        self._buckets[caller] = (tokens - allowed, now)
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise TooManyRequests(
                cause=f"more than {self._per_s:g} requests a second came from one caller",
                cure="Ask less often, or raise rate_per_s in the coordinator's settings",
                retry_after_s=(1.0 - tokens) / self._per_s,
            )


def neighbourhood(host: str) -> str:
    """The caller that an address belongs to: for IPv6, its prefix."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
