"""Packets that are really lost, and links that really come and go, as the doctor sees them."""

import asyncio
import os
import shutil
import subprocess
import sys

import pytest

from benchmarks.chaos.places import MBPS, in_the_lab
from benchmarks.lab import probes
from benchmarks.lab.network import HOST, Network, Wiring, limit
from coordinator.doctor.machines import findings
from protos import imbrex_pb2 as pb
from tests.doctor.patients import VERSION, patient

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None,
    reason="only root with iproute2 may make namespaces",
)
# Of a port that drops most of what arrives faster than it leaves.
SHALLOW = 6000


SAY = """
import pathlib, sys
from worker.machine.machine import LocalMachine
found = LocalMachine().condition(pathlib.Path("/"), announced=False)
sys.stdout.buffer.write(found.SerializeToString())
"""


def condition_in(network, number):
    """What a worker there says of its machine."""
    command = [*network.inside(network.device(number)), sys.executable, "-c", SAY]
    return pb.Condition.FromString(subprocess.run(command, check=True, capture_output=True).stdout)


@pytest.fixture
def network():
    built = Network(Wiring(1, "switch", 80.0))
    built.build()
    yield built
    built.remove()


def sent_through(network):
    """What the doctor finds of a device that has sent a stream to the host."""
    before = condition_in(network, 1)
    probes.stream_mbps(network.device(1), network.host, HOST)
    now = condition_in(network, 1)
    told = {"segments_sent": now.segments_sent, "segments_resent": now.segments_resent}
    return [each.code for each in findings(patient(before=before, **told), VERSION)]


def test_packets_that_a_port_drops_are_packet_loss(network) -> None:
    assert sent_through(network) == []
    limit(network.host.removesuffix("host") + "hub", "port0", 40.0, SHALLOW)
    assert sent_through(network) == ["packet_loss"]


def test_a_port_that_goes_down_and_up_again_is_a_link_that_flaps(network) -> None:
    hub = network.host.removesuffix("host") + "hub"

    def found():
        links = condition_in(network, 1).interfaces
        return [each.code for each in findings(patient(interfaces=links), VERSION)]

    assert found() == []
    for state in ("down", "up") * 8:
        subprocess.run(["ip", "-n", hub, "link", "set", "port1", state], check=True)
    assert found() == ["link_flaps"]


@pytest.mark.slow
async def test_the_doctor_names_the_device_whose_packets_are_lost(tmp_path) -> None:
    async with in_the_lab(tmp_path, 2, 1.0, "digits") as place:
        before = await asyncio.to_thread(place.client.doctor)
        assert "packet_loss" not in [each.code for each in before.findings]
        limit(place.network.host.removesuffix("host") + "hub", "port0", MBPS / 2, SHALLOW)
        after = await asyncio.to_thread(place.client.doctor)
    lossy = [each.device for each in after.findings if each.code == "packet_loss"]
    assert "worker-0" in lossy
