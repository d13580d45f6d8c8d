import asyncio

import pytest
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from protos.daemon.interfaces import Interface, InterfaceRank
from protos.errors import BadConfiguration
from protos.wire.facts import Facts
from tests.protos.machines import home_assistant
from tests.worker.support import in_process
from worker.machine.advertise import SERVICE_TYPE, interfaces, service_info

FACTS = Facts(
    id="0123456789abcdef",
    name="küchen.pi " + "x" * 60,
    machine="aarch64",
    cpu="Raspberry Pi 4",
    cores=4,
    mhz_now=1500.4,
    mhz_max=1800,
    memory_bytes=700_000_000,
    pace=1,
    runtime="1",
    boot_id="b",
    threads=4,
)


def test_the_record_is_what_dns_sd_wants():
    where = [
        Interface("eth0", "10.0.0.2", "255.255.255.0", InterfaceRank.PHYSICAL, 100),
        Interface("eth1", "10.0.0.3", "255.255.255.0", InterfaceRank.PHYSICAL, 1000),
    ]
    info = service_info(FACTS, "0.1.0", "home", 8470, where)
    assert list(info.decoded_properties.items()) == [
        ("txtvers", "1"),
        ("id", "0123456789abcdef"),
        ("v", "0.1.0"),
        ("cluster", "home"),
        ("cores", "4"),
        ("mhz", "1500"),
        ("mbps", "1000"),
        ("mem", "700"),
    ]
    assert info.server == "imbrex-0123456789abcdef.local."
    label = info.name.removesuffix(f".{SERVICE_TYPE}")
    assert len(label.encode()) <= 63
    assert "." not in label
    assert info.parsed_addresses() == ["10.0.0.2", "10.0.0.3"]
    assert len(info.text) < 400


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = home_assistant(tmp_path)
    made.plant(monkeypatch)
    return made


@pytest.mark.parametrize(
    ("bind", "chosen", "expected"),
    [
        ("0.0.0.0", (), ["10.0.0.2", "10.0.0.3", "10.0.5.1"]),
        ("10.0.0.3", (), ["10.0.0.3"]),
        ("127.0.0.1", (), ["127.0.0.1"]),
        ("127.0.0.7", (), ["127.0.0.7"]),
        ("localhost", (), ["127.0.0.1"]),
        ("0.0.0.0", ("10.0.0.2",), ["10.0.0.2"]),
        ("0.0.0.0", ("100.64.0.7",), ["100.64.0.7"]),  # who names it, wants it
    ],
)
def test_containers_vpns_and_dead_interfaces_are_not_advertised(machine, bind, chosen, expected):
    assert [each.address for each in interfaces(bind, chosen)] == expected


def test_virtual_interfaces_are_advertised_where_no_other_is_up(machine):
    for name in ("enp3s0", "wlp2s0", "lan"):
        machine.down.add(name)
    assert [each.address for each in interfaces("0.0.0.0", ())] == [
        "10.99.0.2"
    ]  # a container's end
    machine.down.add("eth0")
    assert {each.address for each in interfaces("0.0.0.0", ())} == {"100.64.0.7", "10.8.0.2"}
    machine.down |= {"wt0", "home-vpn"}
    assert {each.address for each in interfaces("0.0.0.0", ())} == {"172.17.0.1", "172.30.32.1"}
    machine.down |= {"docker0", "hassio"}
    assert interfaces("0.0.0.0", ()) == []


def test_an_address_of_nobody_is_refused(machine):
    with pytest.raises(BadConfiguration, match=r"10\.1\.1\.1"):
        interfaces("0.0.0.0", ("10.1.1.1",))


async def test_a_worker_is_found_on_loopback_and_says_goodbye(tmp_path):
    seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def changed(zeroconf, service_type, name, state_change):
        seen.put_nowait((state_change.name, name))

    finder = AsyncZeroconf(interfaces=["127.0.0.1"])
    browser = AsyncServiceBrowser(finder.zeroconf, SERVICE_TYPE, handlers=[changed])
    try:
        async with in_process(tmp_path / "state", mdns=True, name="found-me") as running:
            name = await wait_for(seen, "Added", running.id)
            info = AsyncServiceInfo(SERVICE_TYPE, name)
            assert await info.async_request(finder.zeroconf, 3000)
            address = f"{info.parsed_scoped_addresses()[0]}:{info.port}"
            assert address == running.address
            assert info.decoded_properties["id"] == running.id
        await wait_for(seen, "Removed", running.id)
    finally:
        await browser.async_cancel()
        await finder.async_close()


async def wait_for(seen, change, device):
    async with asyncio.timeout(60):
        while True:
            what, name = await seen.get()
            if what == change and device[:6] in name:
                return name
