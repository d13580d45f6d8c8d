import asyncio

import pytest
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from protos.errors import BadConfiguration
from protos.facts import Facts
from tests.worker.support import in_process
from worker.advertise import SERVICE_TYPE, Interface, interfaces, service_info

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
    where = [Interface("10.0.0.2", 100), Interface("10.0.0.3", 1000)]
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


class Nic:
    def __init__(self, speed=0, isup=True):
        self.speed = speed
        self.isup = isup


class Address:
    family = 2  # AF_INET

    def __init__(self, address):
        self.address = address


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(
        "worker.advertise.psutil.net_if_addrs",
        lambda: {
            "lo": [Address("127.0.0.1")],
            "eth0": [Address("10.0.0.2")],
            "wlan0": [Address("10.0.0.3")],
            "eth1": [Address("10.0.9.9")],
            "docker0": [Address("172.17.0.1")],
            "br-5f": [Address("172.18.0.1")],
            "veth12": [Address("172.19.0.1")],
        },
    )
    monkeypatch.setattr(
        "worker.advertise.psutil.net_if_stats",
        lambda: {
            "lo": Nic(),
            "eth0": Nic(1000),
            "wlan0": Nic(),
            "eth1": Nic(isup=False),
            "docker0": Nic(10000),
            "br-5f": Nic(),
            "veth12": Nic(),
        },
    )


@pytest.mark.parametrize(
    ("bind", "chosen", "expected"),
    [
        ("0.0.0.0", (), [Interface("10.0.0.2", 1000), Interface("10.0.0.3", 0)]),
        ("10.0.0.3", (), [Interface("10.0.0.3", 0)]),
        ("127.0.0.1", (), [Interface("127.0.0.1", 0)]),
        ("127.0.0.7", (), [Interface("127.0.0.7", 0)]),
        ("localhost", (), [Interface("127.0.0.1", 0)]),
        ("0.0.0.0", ("10.0.0.2",), [Interface("10.0.0.2", 1000)]),
    ],
)
def test_containers_and_dead_interfaces_are_not_advertised(machine, bind, chosen, expected):
    assert interfaces(bind, chosen) == expected


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
    async with asyncio.timeout(15):
        while True:
            what, name = await seen.get()
            if what == change and device[:6] in name:
                return name
