"""Which devices cannot reach each other: some access points isolate their clients.

Every device is asked about every other one, since filters can differ by direction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import structlog

from coordinator.cluster.connection import Connection
from coordinator.tasks.plan import DeviceId
from protos.errors import ImbrexError

# Period of asking again, since a changed access point is not announced.
ASK_AGAIN_S = 300.0

Pair = frozenset[DeviceId]
log = structlog.get_logger(__name__)


class Reach:
    """The devices' answers; devices that were not asked yet are assumed to reach each other."""

    def __init__(self) -> None:
        self.apart: frozenset[Pair] = frozenset()
        self._asked: dict[DeviceId, str] = {}
        self._asked_s = 0.0

    def is_due(self, connections: Mapping[DeviceId, Connection]) -> bool:
        """Whether devices or addresses are new, or the last answers are old."""
        return (
            _addresses(connections) != self._asked or time.monotonic() - self._asked_s > ASK_AGAIN_S
        )

    async def ask(self, connections: Mapping[DeviceId, Connection]) -> bool:
        """Asks every device about the others; returns whether the answers have changed."""
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
        return []  # it does not support the question, or is gone, which its connection will notice


def _addresses(connections: Mapping[DeviceId, Connection]) -> dict[DeviceId, str]:
    return {device: each.address for device, each in connections.items()}
