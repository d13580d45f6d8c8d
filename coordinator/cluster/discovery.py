"""Finding workers by multicast DNS. It only accelerates: a listed worker needs none of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from zeroconf import IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

SERVICE_TYPE = "_imbrex._tcp.local."
_RESOLVE_MS = 3000
# Announcements being resolved at a time; a flood of names must not become a flood of tasks.
_MAX_RESOLVING = 64

log = structlog.get_logger(__name__)


class Discovery:
    """Calls `found(address)` for every address of every worker of `cluster` that is announced."""

    def __init__(
        self, cluster: str, interfaces: Sequence[str], found: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._interfaces = list(interfaces)
        self._found = found
        self._resolving: set[asyncio.Task[None]] = set()
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None

    async def start(self) -> None:
        """Begins to listen. Without multicast it says so, and listed workers still work."""
        options: dict[str, Any] = {"ip_version": IPVersion.V4Only}
        if self._interfaces:
            options["interfaces"] = self._interfaces
        try:
            self._zeroconf = AsyncZeroconf(**options)
        except OSError as error:
            log.warning("no mDNS: list the workers in the settings", error=str(error))
            return
        self._browser = AsyncServiceBrowser(
            self._zeroconf.zeroconf, SERVICE_TYPE, handlers=[self._changed]
        )

    async def stop(self) -> None:
        """Stops listening."""
        for task in self._resolving:
            task.cancel()
        if self._browser is not None:
            await self._browser.async_cancel()
        if self._zeroconf is not None:
            await self._zeroconf.async_close()

    def _changed(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        if state_change is ServiceStateChange.Removed or len(self._resolving) >= _MAX_RESOLVING:
            return
        task = asyncio.get_running_loop().create_task(self._resolve(zeroconf, service_type, name))
        self._resolving.add(task)
        task.add_done_callback(self._resolving.discard)

    async def _resolve(self, zeroconf: Zeroconf, service_type: str, name: str) -> None:
        info = AsyncServiceInfo(service_type, name)
        if not await info.async_request(zeroconf, _RESOLVE_MS):
            return
        cluster = (info.properties.get(b"cluster") or b"").decode(errors="replace")
        if cluster != self._cluster or not info.port:
            return
        for host in info.parsed_scoped_addresses():
            self._found(f"[{host}]:{info.port}" if ":" in host else f"{host}:{info.port}")
