"""Advertises this worker over multicast DNS. For discovery only: liveness comes from gRPC."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psutil  # type: ignore[import-untyped, unused-ignore]
from zeroconf import IPVersion, ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from protos.errors import BadConfiguration
from protos.facts import Facts

SERVICE_TYPE = "_imbrex._tcp.local."

# Interfaces of containers and virtual machines: their addresses mean nothing to other machines.
VIRTUAL = ("docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "podman", "lxc", "lxd")
_ANY = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not bound to

# DNS-SD: an instance name has at most 63 bytes, a value here at most 230.
_NAME_BYTES = 40
_VALUE_BYTES = 230


@dataclass(frozen=True, slots=True)
class Interface:
    """An address to advertise, and the speed of its link in Mbps; 0 if unknown."""

    address: str
    mbps: int


def interfaces(bind: str, chosen: Sequence[str]) -> list[Interface]:
    """The addresses to advertise on: the configured ones, else those listened on.

    Raises:
        BadConfiguration: nothing is left to advertise on.
    """
    wanted = list(chosen) or ([] if bind in _ANY else [_resolved(bind)])
    statistics = psutil.net_if_stats()
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        status = statistics.get(name)
        for entry in addresses:
            if entry.family != socket.AF_INET:
                continue
            usable = not name.startswith((*VIRTUAL, "lo")) and status is not None and status.isup
            if entry.address in wanted if wanted else usable:
                found.append(Interface(entry.address, status.speed if status else 0))
    # All of 127.0.0.0/8 is reachable, though only one of its addresses is listed.
    listed = {entry.address for entry in found}
    found += [Interface(a, 0) for a in wanted if a.startswith("127.") and a not in listed]
    if not found:
        raise BadConfiguration(
            cause=f"no network interface has an address of {', '.join(wanted) or 'this machine'}",
            cure="Correct mdns_interfaces or host, or set mdns = false and name this worker to "
            "the coordinator",
        )
    return found


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
    """Advertises the record while this context is open."""

    def __init__(self, info: ServiceInfo, where: Sequence[Interface]) -> None:
        self._info = info
        self._addresses = [entry.address for entry in where]

    async def __aenter__(self) -> Self:
        self._zeroconf = AsyncZeroconf(interfaces=self._addresses, ip_version=IPVersion.V4Only)
        try:
            registered = self._zeroconf.async_register_service(self._info, allow_name_change=True)
            await (await registered)
        except BaseException:
            await self._zeroconf.async_close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._zeroconf.async_unregister_all_services()
        await self._zeroconf.async_close()


def _resolved(bind: str) -> str:
    return "127.0.0.1" if bind in ("localhost", "::1", "[::1]") else bind


def _short(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore")
