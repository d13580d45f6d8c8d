"""Finding workers by multicast DNS, which is optional: workers can also be listed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from zeroconf import Error, InterfaceChoice, IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from protos.daemon.interfaces import InterfaceRank, best, own_interfaces, rank_towards

SERVICE_TYPE = "_imbrex._tcp.local."
_RESOLVE_MS = 3000
# Announcements that are resolved at a time, and that wait for it: a flood of names must not become
# a flood of tasks.
_MAX_RESOLVING = 64
_MAX_WAITING = 4096
# zeroconf listens on the interfaces that exist when it starts; this often a new interface or
# address is looked for.
INTERFACES_INTERVAL_S = 5.0
# A worker's addresses that lead through a container's bridge or a VPN are tried this much later
# than those of the home's network, and not if it is in use by then.
PATIENCE_S = 5.0

log = structlog.get_logger(__name__)


class Discovery:
    """Calls `found(address)` for every address at which a worker of `cluster` is announced, on
    `interfaces` (addresses of this machine; none: all of them). Of a worker with several addresses
    the ones in the home's network come first; the others only if no worker with this id
    `is_in_use` a little later.
    """

    def __init__(
        self,
        cluster: str,
        interfaces: Sequence[str],
        found: Callable[[str], None],
        is_in_use: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._cluster = cluster
        self._interfaces = list(interfaces)
        self._found = found
        self._is_in_use = is_in_use
        self._later: set[asyncio.TimerHandle] = set()
        self._ids: dict[str, str] = {}
        self._resolving: set[asyncio.Task[None]] = set()
        # Announced names to be resolved, the newest last.
        self._waiting: dict[str, None] = {}
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts listening. Without multicast this is logged; listed workers still work."""
        addresses = _own_addresses()
        self._listen()
        self._watch = asyncio.create_task(self._follow_interfaces(addresses))

    async def ask_again(self) -> None:
        """Forgets all announcements and asks again."""
        await self._unlisten()
        self._listen()

    async def stop(self) -> None:
        """Stops listening."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._unlisten()

    def _listen(self) -> None:
        try:
            self._zeroconf = AsyncZeroconf(
                interfaces=self._interfaces or InterfaceChoice.All, ip_version=IPVersion.V4Only
            )
        except (OSError, Error) as error:
            log.warning(
                "workers cannot be discovered",
                cause=f"mDNS cannot listen: {error}",
                cure="List their addresses in the setting `workers`",
            )
            return
        self._browser = AsyncServiceBrowser(
            self._zeroconf.zeroconf, SERVICE_TYPE, handlers=[self._announced]
        )

    async def _unlisten(self) -> None:
        self._waiting.clear()
        for handle in self._later:
            handle.cancel()
        self._later.clear()
        browser, zeroconf = self._browser, self._zeroconf
        self._browser = self._zeroconf = None
        if browser is not None:
            await browser.async_cancel()
        for task in self._resolving:
            task.cancel()
        await asyncio.gather(*self._resolving, return_exceptions=True)
        if zeroconf is not None:
            await zeroconf.async_close()

    async def _follow_interfaces(self, addresses: frozenset[str]) -> None:
        """Listens again after this machine's addresses have changed."""
        while True:
            await asyncio.sleep(INTERFACES_INTERVAL_S)
            current = _own_addresses()
            if current != addresses:
                addresses = current
                log.info("addresses of this machine changed: mDNS starts again")
                await self.ask_again()

    def _announced(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        # A worker that says goodbye also ends its connection; one that crashed says nothing.
        self._waiting.pop(name, None)
        if state_change is ServiceStateChange.Removed:
            return
        if len(self._waiting) >= _MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[name] = None
        self._resolve_next(zeroconf, service_type)

    def _resolve_next(self, zeroconf: Zeroconf, service_type: str) -> None:
        """The newest first: in a flood of names, the oldest are the most likely to be forged."""
        while self._waiting and len(self._resolving) < _MAX_RESOLVING:
            name, _ = self._waiting.popitem()
            resolving = self._resolve(zeroconf, service_type, name)
            task = asyncio.get_running_loop().create_task(resolving)
            self._resolving.add(task)
            task.add_done_callback(partial(self._resolved, zeroconf, service_type))

    def _resolved(self, zeroconf: Zeroconf, service_type: str, task: asyncio.Task[None]) -> None:
        self._resolving.discard(task)
        if not task.cancelled():
            self._resolve_next(zeroconf, service_type)

    async def _resolve(self, zeroconf: Zeroconf, service_type: str, name: str) -> None:
        info = AsyncServiceInfo(service_type, name)
        if not await info.async_request(zeroconf, _RESOLVE_MS) or not info.port:
            return
        if _said(info, b"cluster") != self._cluster:
            return
        own = await asyncio.to_thread(own_interfaces)
        ranked: dict[InterfaceRank, list[str]] = {}
        for host in info.parsed_scoped_addresses():
            address = f"[{host}]:{info.port}" if ":" in host else f"{host}:{info.port}"
            ranked.setdefault(rank_towards(host, own), []).append(address)
            self._ids[address] = _said(info, b"id")
            if len(self._ids) > _MAX_WAITING:
                del self._ids[next(iter(self._ids))]
        best_rank = min(ranked, default=InterfaceRank.FAR)
        for address in ranked.pop(best_rank, []):
            self._found(address)
        others = [address for rank in sorted(ranked) for address in ranked[rank]]
        if others and len(self._later) < _MAX_RESOLVING:
            self._later.add(
                asyncio.get_running_loop().call_later(
                    PATIENCE_S, self._try_others, _said(info, b"id"), others
                )
            )

    def _try_others(self, device: str, addresses: Sequence[str]) -> None:
        loop_s = asyncio.get_running_loop().time()
        self._later = {timer for timer in self._later if timer.when() > loop_s}
        if not self._is_in_use(device):
            for address in addresses:
                self._found(address)

    def announced_by(self, address: str) -> str:
        """The id of the device that was last announced at an address; empty if none was."""
        return self._ids.get(address, "")


@dataclass(frozen=True, slots=True)
class Heard:
    """A worker's announcement: its id and the name of its cluster."""

    id: str
    cluster: str


async def hear(interfaces: Sequence[str], seconds: float) -> list[Heard]:
    """Asks for workers and listens for this long, independently of `Discovery`. Empty if mDNS
    cannot listen.
    """
    names: dict[str, None] = {}

    def announced(
        zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        del zeroconf, service_type
        if state_change is not ServiceStateChange.Removed and len(names) < _MAX_RESOLVING:
            names[name] = None

    try:
        ear = AsyncZeroconf(
            interfaces=list(interfaces) or InterfaceChoice.All, ip_version=IPVersion.V4Only
        )
    except (OSError, Error):
        return []
    try:
        browser = AsyncServiceBrowser(ear.zeroconf, SERVICE_TYPE, handlers=[announced])
        await asyncio.sleep(seconds)
        infos = [AsyncServiceInfo(SERVICE_TYPE, name) for name in names]
        await asyncio.gather(*(info.async_request(ear.zeroconf, _RESOLVE_MS) for info in infos))
        await browser.async_cancel()
    finally:
        await ear.async_close()
    return [Heard(_said(info, b"id"), _said(info, b"cluster")) for info in infos if info.port]


def _said(info: AsyncServiceInfo, key: bytes) -> str:
    return (info.properties.get(key) or b"").decode(errors="replace")


def _own_addresses() -> frozenset[str]:
    """Those that workers are likely to be heard on: containers come and go."""
    return frozenset(interface.address for interface in best(own_interfaces()))
