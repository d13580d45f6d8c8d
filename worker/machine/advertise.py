"""Advertises this worker over multicast DNS. For discovery only: liveness comes from gRPC."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import structlog
from zeroconf import Error, IPVersion, ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from protos.daemon.interfaces import Interface, InterfaceRank, best, own_interfaces
from protos.errors import BadConfiguration
from protos.wire.facts import Facts

SERVICE_TYPE = "_imbrex._tcp.local."

_ANY = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not bound to

# How soon a new address is advertised: with a lease or a cable, within seconds.
FOLLOW_S = 3.0

_log = structlog.get_logger()

# DNS-SD: an instance name has at most 63 bytes, a value here at most 230.
_NAME_BYTES = 40
_VALUE_BYTES = 230


def interfaces(bind: str, chosen: Sequence[str]) -> list[Interface]:
    """The addresses to advertise: the configured ones, else those listened on. Of all addresses,
    the ones that other machines are most likely to reach; none while nothing is connected.

    Raises:
        BadConfiguration: no interface has a configured address.
    """
    wanted = list(chosen)
    if not wanted and bind not in _ANY:
        wanted = ["127.0.0.1" if bind in ("localhost", "::1", "[::1]") else bind]
    own = own_interfaces()
    if not wanted:
        return best(own)
    advertised = [interface for interface in own if interface.address in wanted]
    # All of 127.0.0.0/8 is reachable, though only one of its addresses is listed.
    listed = {interface.address for interface in advertised}
    missing = (text for text in wanted if text.startswith("127.") and text not in listed)
    advertised += [Interface("lo", text, "255.0.0.0", InterfaceRank.LOOPBACK) for text in missing]
    if not advertised:
        raise BadConfiguration(
            cause=f"no network interface has an address of {', '.join(wanted)}",
            cure="Correct mdns_interfaces or host, or set mdns = false and name this worker to "
            "the coordinator",
        )
    return advertised


def service_info(
    facts: Facts, version: str, cluster: str, port: int, where: Sequence[Interface]
) -> ServiceInfo:
    """The record of this worker. `mbps` is only a prior until links are measured."""
    properties = {
        "txtvers": "1",
        "id": facts.id,
        "v": version,
        "cluster": _short(cluster, _VALUE_BYTES),
        "cores": str(facts.cores),
        "mhz": str(round(facts.mhz_now)),
        "mbps": str(max(entry.mbps for entry in where)),
        "mem": f"{facts.memory_bytes / 1e6:.0f}",
    }
    label = f"{_short(facts.name, _NAME_BYTES).replace('.', '-')}-{facts.id[:6]}"
    return ServiceInfo(
        SERVICE_TYPE,
        f"{label}.{SERVICE_TYPE}",
        port=port,
        properties=properties,
        # A host name different from Avahi's, which must not be claimed.
        server=f"imbrex-{facts.id}.local.",
        parsed_addresses=[entry.address for entry in where],
    )


class Advertisement:
    """Advertises a worker, and follows the addresses of this machine: a new lease, a cable that is
    pulled and put back, Wi-Fi after Ethernet.
    """

    def __init__(self, bind: str, chosen: Sequence[str], wanted: bool = True) -> None:
        """Without `wanted` it advertises nothing.

        Raises:
            BadConfiguration: as `interfaces`.
        """
        self._wanted = wanted
        self._bind, self._chosen = bind, chosen
        self._zeroconf: AsyncZeroconf | None = None
        self._is_warned = self._is_moved = False
        if wanted:
            interfaces(bind, chosen)

    @property
    def stands(self) -> bool:
        """Whether it is being advertised."""
        return self._zeroconf is not None

    async def run(self, facts: Facts, version: str, cluster: str, port: int) -> None:
        """Advertises until it is cancelled."""
        current: list[Interface] | None = None
        try:
            while self._wanted:
                try:
                    there = interfaces(self._bind, self._chosen)
                except BadConfiguration:
                    there = []
                if there != current:
                    await self._withdraw()
                    current = there
                    if there and not await self._register(
                        service_info(facts, version, cluster, port, there), there
                    ):
                        current = None
                await asyncio.sleep(FOLLOW_S)
        finally:
            await self._withdraw()

    async def _register(self, info: ServiceInfo, where: Sequence[Interface]) -> bool:
        """Otherwise the worker still serves, but has to be named to the coordinator."""
        addresses = [interface.address for interface in where]
        try:
            self._zeroconf = AsyncZeroconf(interfaces=addresses, ip_version=IPVersion.V4Only)
            registered = self._zeroconf.async_register_service(info, allow_name_change=True)
            await (await registered)
        except (OSError, Error) as error:
            await self._withdraw()
            if not self._is_warned:
                _log.warning(
                    "not advertised",
                    cause=str(error) or type(error).__name__,
                    cure="Add this worker's address to the coordinator's settings",
                )
            self._is_warned = True
            return False
        if self._is_moved:
            _log.info("advertised again", addresses=addresses)
        self._is_warned, self._is_moved = False, True
        return True

    async def _withdraw(self) -> None:
        zeroconf, self._zeroconf = self._zeroconf, None
        if zeroconf is not None:
            with suppress(OSError, Error):
                await zeroconf.async_unregister_all_services()
            await zeroconf.async_close()


def _short(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore")
