"""The connected devices as the driver and the audit see them: what can be sent to them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import suppress

from coordinator.devices.connection import Connection
from coordinator.devices.pool import Pool
from models.cut.program import BlobSource, Program
from protos import imbrex_pb2 as pb
from protos.errors import ImbrexError, LostWorker
from protos.wire.facts import DeviceId, Facts
from protos.wire.frames import Payload


class LiveTransport:
    """Sends over the pool's connections. `sent` is called as a transfer begins or ends, which
    disturbs a running probe.
    """

    def __init__(self, pool: Pool, sent: Callable[[], None]) -> None:
        self._pool = pool
        self._sent = sent

    async def ensure(
        self, device: DeviceId, programs: Sequence[Program], blobs: BlobSource
    ) -> None:
        """Returns when the programs can run on the device."""
        self._sent()
        try:
            await self._pool.connection(device).ensure(programs, blobs)
        finally:
            self._sent()

    async def send(
        self, device: DeviceId, items: Sequence[pb.Item], payloads: Sequence[Payload]
    ) -> None:
        """Queues one message."""
        self._sent()
        await self._pool.connection(device).send(items, payloads)

    def connection(self, device: DeviceId) -> Connection | None:
        """The connection to a device that can be used now."""
        with suppress(LostWorker):
            return self._pool.connection(device)
        return None

    def facts(self, device: DeviceId) -> Facts | None:
        """What a device that can be used now says of itself."""
        connection = self.connection(device)
        return connection.facts if connection else None

    def has(self, device: DeviceId, program: str) -> bool:
        """Whether a program can run on the device without being sent."""
        connection = self.connection(device)
        return connection is not None and program in connection.programs

    def forget(self, device: DeviceId, program: str) -> None:
        """A device reported that it no longer has this program."""
        if connection := self.connection(device):
            connection.programs.forget(program)

    def address(self, device: DeviceId) -> str:
        """The address where peers reach the device."""
        connection = self.connection(device)
        return connection.address if connection else ""

    def departure(self, device: DeviceId) -> ImbrexError | None:
        """Why a device's connection ended; None if it was not the connection that failed."""
        return self._pool.departures.get(device)

    def offset_s(self, device: DeviceId) -> float:
        """Seconds to add to the device's clock to get this machine's."""
        connection = self.connection(device)
        return connection.offset_s if connection else 0.0

    def shows(self, device: DeviceId) -> bool:
        """Whether a device can be asked for what its peers sent."""
        connection = self.connection(device)
        return connection is not None and connection.shows

    def is_alike(self, device: DeviceId) -> bool:
        """Whether a device has the same kind of processor as this machine, as far as is known."""
        facts = self.facts(device) or self._pool.last_facts(device)
        return facts is not None and facts.machine == platform.machine()
