"""Rate limits: a token bucket for every API key, or address without a key.

A bucket holds what `BURST_S` seconds bring, and gains `per_s` tokens a second; every request takes
one (the committed rate and burst of RFC 2697).
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import ClassVar

from protos.errors import Overloaded

# A page opens with a dozen files at once, and a camera's detections come in bursts.
BURST_S = 2.0
# Dropping a bucket refills it, so there are more than a home has callers; 100 kB in total.
MAX_CALLERS = 1024
# The IPv6 prefix of one subscriber (RFC 6177), who controls all of its addresses.
_IPV6_PREFIX = 64


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
