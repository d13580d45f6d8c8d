"""Real namespaces, where the machine lets us make them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks.lab import network as rooms
from benchmarks.lab import probes
from benchmarks.lab.calibrate import Emulated, Machine
from benchmarks.lab.cluster import Computer
from benchmarks.lab.cuts import cut_peers
from benchmarks.lab.guard import guarded
from benchmarks.lab.namespace import inside
from benchmarks.lab.network import Network, Wiring, remove_leftovers, require_tools
from imbrex.demo.emulation.rate import Core
from imbrex.kinds.presets import DeviceRates, Preset
from protos.errors import BadConfiguration, Unavailable

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None,
    reason="only root with iproute2 may make namespaces",
)

MBPS = 80.0

OWNER = """
import os, pathlib, sys, time
from benchmarks.lab.cluster import Computer
from benchmarks.lab.guard import guarded
from benchmarks.lab.network import Network, Wiring
folder = pathlib.Path(sys.argv[1])
with guarded(os.getpid(), folder):
    Network(Wiring(1, "star", 50.0)).build()
    print("built", flush=True)
    time.sleep(600)
"""


def existing(owner):
    return [name for name in rooms.existing() if name.startswith(f"{rooms.PREFIX}{owner}-")]


def until(condition, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def built():
    made = []

    def build(medium):
        network = Network(Wiring(2, medium, MBPS))
        made.append(network)
        network.build()
        return network

    yield build
    for network in made:
        network.remove()


@needs_root
def test_devices_that_are_cut_off_twice_are_mended_twice(built):
    network = built("switch")

    def lost():
        route = ["ip", "-n", network.device(1), "route", "get", network.address(2)]
        return subprocess.run(route, capture_output=True, check=False).returncode != 0

    mends = [cut_peers(network, 1, 2), cut_peers(network, 2, 1)]
    assert lost()
    mends[0]()
    assert lost()
    mends[1]()
    assert not lost()


@needs_root
@pytest.mark.parametrize("medium", ["star", "air", "switch"])
def test_machines_of_a_network_all_reach_each_other(built, medium):
    network = built(medium)
    places = [network.host, network.device(1), network.device(2)]
    for index, place in enumerate(places):
        with inside(place), socket.create_server((network.address(index), 0)) as server:
            for other in places:
                with inside(other):
                    socket.create_connection(server.getsockname(), timeout=10).close()


@needs_root
@pytest.mark.parametrize("medium", ["star", "air", "switch"])
def test_a_message_on_an_idle_link_is_no_faster_than_the_wire(built, medium):
    network = built(medium)
    for way in ((network.host, network.device(1), 1), (network.device(1), network.host, 0)):
        *ends, to = way
        assert probes.message_mbps(*ends, network.address(to)) <= 1.1 * MBPS


@needs_root
def test_peers_go_through_the_host_in_a_star_only(built):
    for medium, through in (("star", True), ("switch", False)):
        network = built(medium)
        route = subprocess.run(
            ["ip", "-n", network.device(1), "route", "get", network.address(2)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert (f"via {rooms.HOST}" in route.stdout) is through
        network.remove()


@needs_root
def test_a_killed_owner_leaves_nothing(tmp_path):
    left = tmp_path / "state"
    left.mkdir()
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(left)], stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"built\n"
    assert len(existing(owner.pid)) == 3
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    until(lambda: not existing(owner.pid) and not left.exists())


@needs_root
def test_the_next_run_removes_what_guard_and_owner_left():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stranger = Network(Wiring(1, "star", 50.0), owner=gone.pid)
    stranger.build()
    with inside(stranger.host):
        inhabitant = subprocess.Popen(["sleep", "600"])
    assert set(remove_leftovers()) >= set(existing(gone.pid))
    assert not existing(gone.pid)
    assert not psutil.pid_exists(inhabitant.pid)
    inhabitant.wait()


@needs_root
def test_leaving_the_guard_removes_everything(tmp_path):
    with guarded(os.getpid(), tmp_path / "state"):
        Network(Wiring(1, "star", 50.0)).build()
        assert len(existing(os.getpid())) == 3
    assert not existing(os.getpid())


def test_lab_without_root_says_so(monkeypatch):
    monkeypatch.setattr(rooms.shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(rooms.os, "geteuid", lambda: 1000)
    with pytest.raises(BadConfiguration) as caught:
        require_tools()
    assert "root" in caught.value.cause
    assert "sudo" in caught.value.cure


def test_lab_without_iproute2_says_so(monkeypatch):
    monkeypatch.setattr(rooms.shutil, "which", lambda tool: None)
    with pytest.raises(BadConfiguration) as caught:
        require_tools()
    assert "tc" in caught.value.cause
    assert "iproute2" in caught.value.cure


WANTED = Preset(gflops=4, mbps=100, message_ms=3, task_ms=1)


def test_a_lab_that_emulates_something_else_is_at_fault():
    good = Emulated((3.8, 4.1), (99.0,), (101.0,), (104.0,), (3.2,), (0.1,), WANTED)
    assert good.faults() == []
    slow = Emulated((3.8, 3.5), (99.0,), (80.0,), (1500.0,), (3.2,), (0.1,), WANTED)
    assert [fault.split(" is ")[0] for fault in slow.faults()] == [
        "GFLOP/s per device, all at once",
        "Mbps to the host",
        "Mbps of 64 KB alone",
    ]


def test_daemons_are_told_the_difference_to_this_machine():
    computer = Machine(Core(100, 1e-3), message_ms=0.5, byte_ns=1).computer(WANTED)
    told = {"pace": 0.04, "message_ms": 2.5, "byte_ns": 0, "task_ms": 1, "reference_s": 1e-3}
    assert computer == Computer(**told, rates=DeviceRates(gflops=4))


def test_a_machine_that_is_too_slow_is_refused():
    with pytest.raises(Unavailable) as caught:
        Machine(Core(3, 1e-3), message_ms=0.5, byte_ns=1).computer(WANTED)
    assert "--scale" in caught.value.cure
