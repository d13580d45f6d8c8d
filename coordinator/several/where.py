"""Where a coordinator gives files to the others: an address that it finds out, and writes into the
cluster's state.
"""

import ipaddress
import re
from contextlib import suppress
from urllib.parse import urlsplit

from coordinator.several.borrowing import LendingCoordinator
from coordinator.several.nats_store import StoreAddress
from coordinator.trust.cluster_state import Entries
from protos.rpc.channels import ELSEWHERE, address_towards, is_loopback

ADDRESS = "address"
# Nothing but a host and a port: gRPC takes paths of sockets, too.
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")
# Part of names of files.
_ID = re.compile(r"[0-9a-f]{12}")


def own_address(store_url: str, host: str, port: int) -> str:
    """Where others reach what listens on `host:port`: if that is every address, the one from which
    this machine reaches the store of the cluster's state. Empty while there is no network.
    """
    try:
        is_every_address = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        is_every_address = False  # a host's name
    if not is_every_address:
        return _with_port(host, port)
    servers = [urlsplit(server) for server in StoreAddress(store_url).servers]
    if all(is_loopback(server.hostname or "") for server in servers):
        return _with_port("127.0.0.1", port)
    # One of the servers may be on this machine.
    for there in [*((server.hostname or "", server.port or 0) for server in servers), ELSEWHERE]:
        with suppress(OSError):
            found = address_towards(*there)
            if not is_loopback(found):
                return _with_port(found, port)
    return ""


def sources(coordinators: Entries, own_id: str) -> list[LendingCoordinator]:
    """The other coordinators that say where they give files."""
    return [
        LendingCoordinator(id_, str(entry.get("name", id_)), entry[ADDRESS])
        for id_, entry in coordinators.items()
        if id_ != own_id and _ID.fullmatch(id_) and _ADDRESS.fullmatch(str(entry.get(ADDRESS, "")))
    ]


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
