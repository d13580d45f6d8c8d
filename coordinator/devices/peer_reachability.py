"""Which devices cannot reach each other: some access points isolate their clients.

Every device is asked about every other one, since filters can differ by direction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import structlog

from coordinator.devices.connection import Connection
from protos.errors import ImbrexError
from protos.wire.facts import DeviceId

# Period of asking again, since a changed access point is not announced.
ASK_AGAIN_S = 300.0
# Who is apart is asked again after this, then after twice as long, and so on: devices refuse one
# that has just been enrolled until they have the new list of members.
DOUBT_S = 2.0

Pair = frozenset[DeviceId]


log = structlog.get_logger(__name__)


class Reach:
    """The devices' answers; devices that were not asked yet are assumed to reach each other.

    A device that is new asks about all others, and they about it alone, so that many devices that
    come one after another cost no more questions than there are pairs.
    """

    def __init__(self) -> None:
        self.apart: frozenset[Pair] = frozenset()
        self._asked: dict[DeviceId, str] = {}
        self._asked_s = 0.0
        self.doubt_s = DOUBT_S
        self._doubted_s = 0.0

    def is_due(self, devices: Mapping[DeviceId, Connection]) -> bool:
        """Whether devices or addresses are new, or the last answers are old or in doubt."""
        return _addresses(devices) != self._asked or self._is_old or bool(self._doubtful)

    @property
    def _is_old(self) -> bool:
        return time.monotonic() - self._asked_s > ASK_AGAIN_S

    @property
    def _doubtful(self) -> frozenset[Pair]:
        is_due = time.monotonic() - self._doubted_s > self.doubt_s
        return self.apart if is_due else frozenset()

    async def ask(self, devices: Mapping[DeviceId, Connection]) -> bool:
        """Asks what is not known yet; returns whether the answers have changed."""
        addresses, before = _addresses(devices), self.apart
        if self._is_old:
            self._asked, self._asked_s = {}, time.monotonic()
        new = {k for k, address in addresses.items() if self._asked.get(k) != address}
        doubtful = self._doubtful
        self._asked, self._doubted_s = addresses, time.monotonic()

        def unknown(device: DeviceId) -> dict[DeviceId, str]:
            return {
                other: address
                for other, address in addresses.items()
                if other != device
                and (not new.isdisjoint((device, other)) or {device, other} in doubtful)
            }

        answers = await asyncio.gather(
            *(_unreachable(k, connection, unknown(k)) for k, connection in devices.items())
        )
        known = self._asked.keys()
        kept = (pair for pair in self.apart - doubtful if pair <= known and pair.isdisjoint(new))
        self.apart = frozenset({*kept, *(pair for pairs in answers for pair in pairs)})
        self.doubt_s = min(2 * self.doubt_s, ASK_AGAIN_S) if self.apart == before else DOUBT_S
        if self.apart - before:
            log.warning(
                "devices cannot reach each other",
                pairs=sorted(sorted(pair) for pair in self.apart),
                cure="Halos go through the coordinator; check whether the access point isolates "
                "its clients",
            )
        return self.apart != before


async def _unreachable(
    device: DeviceId, asked: Connection, addresses: Mapping[DeviceId, str]
) -> list[Pair]:
    if not addresses:
        return []
    try:
        return [frozenset((device, peer)) for peer in await asked.unreachable(addresses)]
    except ImbrexError:
        return []  # it does not support the question, or is gone, which its connection will notice


def _addresses(devices: Mapping[DeviceId, Connection]) -> dict[DeviceId, str]:
    return {device: connection.address for device, connection in devices.items()}
