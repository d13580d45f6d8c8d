"""The state of a machine, read from files laid out as a Raspberry Pi's kernel has them."""

import os
import subprocess

import pytest

from protos.rpc.channels import Caller
from protos.rpc.worker_client import WorkerClient
from tests.worker.support import in_process
from worker.machine.machine import Cards, LocalMachine, power_flags, throttled

PI = {
    "proc/meminfo": "MemTotal:  948000 kB\nMemFree:  10 kB\nMemAvailable:  150000 kB\n",
    "sys/devices/platform/soc/soc:firmware/get_throttled": "50005\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "ondemand\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "cpufreq-dt\n",
    "sys/class/net/eth0/carrier": "1\n",
    "sys/class/net/eth0/speed": "100\n",
    "sys/class/net/eth0/carrier_changes": "7\n",
    "proc/uptime": "86400.12 340000.00\n",
    "proc/net/snmp": (
        "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: RtoMin MaxConn InSegs OutSegs RetransSegs\n"
        "Tcp: 200 -1 5000 4000 30\nUdp: InDatagrams\nUdp: 12\n"
    ),
    "sys/class/net/wlan0/carrier": "0\n",
    "sys/class/net/wlan0/wireless/.keep": "",
}


class Drivers(Cards):
    def __init__(self, **addresses: list[str]) -> None:
        self.addresses = lambda: addresses  # type: ignore[method-assign]

    def port_mbps(self, name: str) -> int:
        return {"eth0": 1000}[name]

    def saves_power(self, name: str) -> bool:
        return {"wlan0": True}[name]

    def saves_energy(self, name: str) -> bool:
        return {"eth0": True}[name]


def laid_out(root, files) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def pi(tmp_path) -> LocalMachine:
    laid_out(tmp_path / "root", PI)
    cards = Drivers(lo=["127.0.0.1"], eth0=["10.0.0.2"], wlan0=[], docker0=["172.17.0.1"])
    return LocalMachine(tmp_path / "root", cards, lambda: 1e9)


def test_a_pi_in_a_bad_state(pi, tmp_path) -> None:
    found = pi.condition(tmp_path, announced=True)
    assert (found.clock_s, found.announced) == (1e9, True)
    assert found.memory_bytes == 948_000 << 10
    assert found.memory_available_bytes == 150_000 << 10
    assert found.power_flags == 0x50005
    assert (found.governor, found.governor_driver) == ("ondemand", "cpufreq-dt")
    assert 0 < found.disk_free_bytes <= found.disk_bytes
    cable, wifi = found.interfaces
    assert (cable.name, list(cable.addresses)) == ("eth0", ["10.0.0.2"])
    assert (cable.connected, cable.mbps, cable.port_mbps) == (True, 100, 1000)
    assert (cable.carrier_changes, cable.saves_energy, wifi.saves_energy) == (7, True, False)
    assert (found.up_s, found.segments_sent, found.segments_resent) == (86_400, 4000, 30)
    assert not cable.wireless
    assert not cable.saves_power
    assert (wifi.name, wifi.connected, wifi.wireless, wifi.saves_power) == (
        *("wlan0", False, True),
        True,
    )


@pytest.mark.parametrize(
    "name",
    [
        "soc/soc:firmware",
        "soc@107c000000/soc@107c000000:firmware",  # a Pi 5 with kernel 6.12
    ],
)
@pytest.mark.parametrize(
    ("text", "held"), [("0", False), ("50000", False), ("50005", True), ("4", True), ("x", False)]
)
def test_a_pi_says_when_it_is_throttled(tmp_path, name, text, held) -> None:
    laid_out(tmp_path, {f"sys/devices/platform/{name}/get_throttled": f"{text}\n"})
    assert throttled(tmp_path) is held


@pytest.mark.parametrize(("alarm", "flags"), [("1\n", 1), ("0\n", 0), ("odd", 0)])
def test_a_kernel_of_debians_own_tells_of_the_voltage(tmp_path, alarm, flags) -> None:
    sensors = {"hwmon0/name": "nvme\n", "hwmon0/in0_lcrit_alarm": "1\n"}
    sensors |= {"hwmon1/name": "rpi_volt\n", "hwmon1/in0_lcrit_alarm": alarm}
    laid_out(tmp_path, {f"sys/class/hwmon/{name}": text for name, text in sensors.items()})
    assert power_flags(tmp_path) == flags


def test_condition_is_empty_where_no_file_says_anything(tmp_path) -> None:
    found = LocalMachine(tmp_path / "empty", Drivers()).condition(tmp_path, announced=False)
    assert found.memory_bytes == found.power_flags == 0
    assert not found.governor
    assert not found.interfaces


@pytest.mark.parametrize("damage", ["", "-1", "no number"])
def test_odd_files_are_not_believed(pi, tmp_path, damage) -> None:
    (tmp_path / "root/sys/class/net/eth0/speed").write_text(damage)
    (tmp_path / "root/proc/meminfo").write_text(f"MemTotal: {damage}\n\nodd")
    (tmp_path / "root/sys/class/net/eth0/carrier_changes").write_text(damage)
    (tmp_path / "root/proc/uptime").write_text(damage)
    (tmp_path / "root/proc/net/snmp").write_text(f"Tcp: OutSegs RetransSegs\nTcp: {damage}\n")
    found = pi.condition(tmp_path, announced=False)
    assert found.interfaces[0].mbps == found.interfaces[0].carrier_changes == 0
    assert found.up_s == found.segments_sent == found.segments_resent == 0
    assert found.memory_available_bytes == 0


def test_condition_of_this_machine_is_plausible(tmp_path) -> None:
    """Whatever it is: nothing fails, and the drivers' answers are plausible."""
    found = LocalMachine().condition(tmp_path, announced=False)
    assert found.clock_s > 1.7e9
    assert found.memory_available_bytes <= found.memory_bytes
    assert found.memory_bytes
    ports = {each.port_mbps for each in found.interfaces}
    assert ports <= {0, 10, 100, 1000, 2500, 10_000}
    assert Cards().port_mbps("nothing") == 0
    assert not Cards().saves_power("nothing")
    assert not Cards().saves_energy("nothing")
    assert 0 < found.segments_resent <= found.segments_sent or not found.segments_resent
    assert found.up_s > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk(tmp_path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        (disk / "weights").write_bytes(bytes(1000 << 10))
        found = LocalMachine().condition(disk, announced=False)
        assert found.disk_bytes == 1 << 20
        assert found.disk_free_bytes < 50_000
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def test_a_worker_tells_it_and_whom_it_reaches(tmp_path) -> None:
    async with (
        in_process(tmp_path / "a") as one,
        in_process(tmp_path / "b") as other,
        WorkerClient(one.address, Caller("host")) as client,
    ):
        neighbours = {
            other.id: other.address,
            "gone": "127.0.0.1:9",
            "somebody else": other.address,
        }
        reply = await client.examine(neighbours, 10.0)
    assert reply.condition.memory_bytes
    assert not reply.condition.announced
    told = {each.device: each.error for each in reply.reached}
    assert told[other.id] == ""
    assert "127.0.0.1:9" in told["gone"]
    assert f"is device {other.id}, not somebody else" in told["somebody else"]
