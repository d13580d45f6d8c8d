"""Announcements on loopback: whose they are, and what a missing network changes."""

import pytest
from structlog.testing import capture_logs
from zeroconf import IPVersion, ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from coordinator.devices import discovery
from coordinator.devices.discovery import SERVICE_TYPE, Discovery
from tests.devices.support import LOOPBACK, unique_cluster
from tests.protos.machines import home_assistant
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


async def test_worker_announced_before_listening_is_found(announcer):
    cluster = unique_cluster()
    await announce(announcer, record(cluster, f"a{cluster}", 1001))
    found = []
    listening = Discovery(cluster, [LOOPBACK], found.append)
    await listening.start()
    await until(lambda: found == ["127.0.0.1:1001"])
    await listening.stop()


def no_network(*_args, **_kwargs):
    raise OSError(101, "Network is unreachable")


async def test_discovery_without_multicast_says_what_to_do(monkeypatch):
    monkeypatch.setattr(discovery, "AsyncZeroconf", no_network)
    with capture_logs() as logs:
        listening = Discovery("x", [LOOPBACK], lambda _address: None)
        await listening.start()
        await listening.stop()
    (entry,) = logs
    assert entry["cause"] == "mDNS cannot listen: [Errno 101] Network is unreachable"
    assert "setting `workers`" in entry["cure"]


async def test_discovery_listens_anew_when_addresses_change(announcer, monkeypatch):
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


ADDRESSES = ("172.30.32.1", "100.64.0.9", "10.0.0.9", "10.0.5.9")


async def told_of(announcer, monkeypatch, tmp_path, *, in_use):
    """The addresses that are tried, in groups of when they are."""
    home_assistant(tmp_path).plant(monkeypatch)
    monkeypatch.setattr(discovery, "PATIENCE_S", 0.1)
    cluster, found = unique_cluster(), []
    listening = Discovery(cluster, [LOOPBACK], found.append, lambda _device: in_use)
    await listening.start()
    await announce(announcer, record(cluster, f"a{cluster}", 1, ADDRESSES))
    await until(lambda: found and not listening._resolving and not listening._later)
    await listening.stop()
    assert listening.announced_by("172.30.32.1:1") == f"a{cluster}"
    return list(dict.fromkeys(found))


async def test_the_home_s_network_comes_first_and_others_if_it_does_not_reach(
    announcer, monkeypatch, tmp_path
):
    found = await told_of(announcer, monkeypatch, tmp_path, in_use=False)
    assert {*found[:2]} == {"10.0.0.9:1", "10.0.5.9:1"}
    assert found[2:] == ["100.64.0.9:1", "172.30.32.1:1"]


async def test_vpns_and_containers_are_not_tried_for_a_device_in_use(
    announcer, monkeypatch, tmp_path
):
    found = await told_of(announcer, monkeypatch, tmp_path, in_use=True)
    assert {*found} == {"10.0.0.9:1", "10.0.5.9:1"}
