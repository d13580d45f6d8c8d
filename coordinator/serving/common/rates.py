"""How often one caller may ask: a bucket of tokens for every API key, or address without one.

A bucket holds what `BURST_S` seconds bring, and gains `per_s` tokens a second; every request takes
one (RFC 2697's committed rate and burst).
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import ClassVar

from protos.errors import Overloaded

# A page opens with a dozen files at once, a camera's detections come in bunches.
BURST_S = 2.0
# Forgetting a bucket refills it, so there are more than a home has callers; 100 kB in all.
MAX_CALLERS = 1024
# What one subscriber's line is given of IPv6 (RFC 6177): its holder has all the addresses in it.
_IPV6_PREFIX = 64


class TooManyRequests(Overloaded):
    """This caller asks more often than it may."""

    code: ClassVar[str] = "too_many_requests"


class Rates:
    """Buckets by caller; `per_s` 0 lets everybody ask as often as they like."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._most = max(1.0, per_s * BURST_S)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, at

    def take(self, caller: str, now: float) -> None:
        """One request; `now` in seconds of a clock that never goes back.

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
    """Addresses that count as one caller."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
