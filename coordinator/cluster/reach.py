"""Which devices cannot reach each other: some access points keep their clients apart.

Every device is asked about every other one, since what is filtered one way need not be the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import structlog

from coordinator.cluster.connection import Connection
from coordinator.tasks.plan import DeviceId
from protos.errors import ImbrexError

# Nobody tells us when an access point is set up anew.
ASK_AGAIN_S = 300.0

Pair = frozenset[DeviceId]
log = structlog.get_logger(__name__)


class Reach:
    """What the devices said; those that were not asked yet are thought to reach each other."""

    def __init__(self) -> None:
        self.apart: frozenset[Pair] = frozenset()
        self._asked: dict[DeviceId, str] = {}
        self._asked_s = 0.0

    def is_due(self, connections: Mapping[DeviceId, Connection]) -> bool:
        """Whether devices or addresses are new, or the last answers old."""
        return (
            _addresses(connections) != self._asked or time.monotonic() - self._asked_s > ASK_AGAIN_S
        )

    async def ask(self, connections: Mapping[DeviceId, Connection]) -> bool:
        """Asks every device about the others; whether the answers are news."""
        before = self.apart
        addresses = _addresses(connections)
        self._asked, self._asked_s = addresses, time.monotonic()
        found = await asyncio.gather(
            *(_unreachable(device, each, addresses) for device, each in connections.items())
        )
        self.apart = frozenset(pair for pairs in found for pair in pairs)
        if self.apart - before:
            log.warning(
                "devices cannot reach each other",
                pairs=sorted(sorted(pair) for pair in self.apart),
                cure="Halos go through the coordinator; check whether the access point isolates "
                "its clients",
            )
        return self.apart != before


async def _unreachable(
    device: DeviceId, connection: Connection, addresses: Mapping[DeviceId, str]
) -> list[Pair]:
    others = {each: address for each, address in addresses.items() if each != device}
    try:
        return [frozenset((device, each)) for each in await connection.unreachable(others)]
    except ImbrexError:
        return []  # too old to tell, or gone: for its own connection to find out


def _addresses(connections: Mapping[DeviceId, Connection]) -> dict[DeviceId, str]:
    return {device: each.address for device, each in connections.items()}
