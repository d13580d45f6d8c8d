"""Measuring links while nothing else happens, one device at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from coordinator.cluster.connection import Connection
from coordinator.cluster.link_file import save_links
from coordinator.measured import Measured
from coordinator.planning.plan import DeviceId
from protos.errors import LostWorker


class Probing:
    """Probes links when the cluster is `idle`, keeps what was found in `folder`, and tells of it
    (`changed`, with the cause).
    """

    def __init__(
        self,
        measured: Measured,
        idle: Callable[[], Awaitable[None]],
        changed: Callable[[str], None],
        folder: Path,
    ) -> None:
        self._measured = measured
        self._idle = idle
        self._changed = changed
        self._folder = folder
        # Probes in parallel would measure each other.
        self._one_at_a_time = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether anything is to be probed."""
        return bool(self._running)

    def start(self, cause: str, connections: Mapping[DeviceId, Connection]) -> None:
        """Begins to probe these; returns at once."""
        probe = asyncio.create_task(self._probe(cause, connections))
        self._running.add(probe)
        probe.add_done_callback(self._running.discard)

    async def stop(self) -> None:
        """Ends every probe."""
        for probe in self._running:
            probe.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _probe(self, cause: str, connections: Mapping[DeviceId, Connection]) -> None:
        async with self._one_at_a_time:
            for device, connection in connections.items():
                await self._idle()
                with suppress(LostWorker):
                    await self._measured.probe(device, connection)
            save_links(self._folder, self._measured.links)
        self._changed(cause)
