"""Announcements on loopback: whose they are, and what a missing network changes."""

import pytest
from structlog.testing import capture_logs
from zeroconf import IPVersion, ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from coordinator.cluster import discovery
from coordinator.cluster.discovery import SERVICE_TYPE, Discovery
from tests.cluster.support import LOOPBACK, unique_cluster
from tests.waiting import until


def record(cluster, name, port, addresses=("127.0.0.1",)):
    return ServiceInfo(
        SERVICE_TYPE,
        f"{name}.{SERVICE_TYPE}",
        port=port,
        properties={"txtvers": "1", "id": name, "cluster": cluster},
        server=f"{name}.local.",
        parsed_addresses=list(addresses),
    )


@pytest.fixture
async def announcer():
    zeroconf = AsyncZeroconf(interfaces=[LOOPBACK], ip_version=IPVersion.V4Only)
    yield zeroconf
    await zeroconf.async_unregister_all_services()
    await zeroconf.async_close()


async def announce(zeroconf, info):
    await (await zeroconf.async_register_service(info))


async def test_every_address_of_our_cluster_is_found_and_no_other(announcer):
    cluster = unique_cluster()
    found = []
    listening = Discovery(cluster, [LOOPBACK], found.append)
    await listening.start()
    await announce(announcer, record(unique_cluster(), f"a{cluster}", 1001))
    await announce(announcer, record(cluster, f"b{cluster}", 1002, ("10.1.2.3", "10.1.2.4")))
    await announce(announcer, record(cluster, f"c{cluster}", 1003))
    await until(lambda: len(found) >= 3)
    await listening.stop()
    assert sorted(found) == ["10.1.2.3:1002", "10.1.2.4:1002", "127.0.0.1:1003"]


async def test_one_that_was_there_before_is_found(announcer):
    cluster = unique_cluster()
    await announce(announcer, record(cluster, f"a{cluster}", 1001))
    found = []
    listening = Discovery(cluster, [LOOPBACK], found.append)
    await listening.start()
    await until(lambda: found == ["127.0.0.1:1001"])
    await listening.stop()


def no_network(*_args, **_kwargs):
    raise OSError(101, "Network is unreachable")


async def test_without_multicast_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(discovery, "AsyncZeroconf", no_network)
    with capture_logs() as logs:
        listening = Discovery("x", [LOOPBACK], lambda _address: None)
        await listening.start()
        await listening.stop()
    (entry,) = logs
    assert entry["cause"] == "mDNS cannot listen: [Errno 101] Network is unreachable"
    assert "setting `workers`" in entry["cure"]


async def test_it_listens_anew_when_addresses_change(announcer, monkeypatch):
    cluster = unique_cluster()
    found = []
    addresses = {"127.0.0.1"}
    monkeypatch.setattr(discovery, "_own_addresses", lambda: frozenset(addresses))
    monkeypatch.setattr(discovery, "INTERFACES_INTERVAL_S", 0.01)
    await announce(announcer, record(cluster, f"a{cluster}", 1001))
    listening = Discovery(cluster, [LOOPBACK], found.append)
    with monkeypatch.context() as down:
        down.setattr(discovery, "AsyncZeroconf", no_network)
        await listening.start()
    assert found == []
    addresses.add("10.0.0.7")
    await until(lambda: found)
    await listening.stop()
