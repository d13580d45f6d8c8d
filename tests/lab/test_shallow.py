"""What is right of a cluster behind a switch with shallow queues."""

import json
import os
import shutil
import subprocess

import pytest

from benchmarks.lab.network import QUEUE_BYTES, Network, Wiring
from benchmarks.lab.shallow import is_right

RIGHT = {"lost": 0, "max_rel_error": 1e-6, "p99_ratio": 1.4}


@pytest.mark.parametrize(
    ("changed", "right"),
    [
        ({}, True),
        ({"lost": 1}, False),
        ({"max_rel_error": 1e-3}, False),
        ({"p99_ratio": 2.01}, False),
    ],
)
def test_run_with_a_lost_wrong_or_late_answer_is_not_right(changed, right):
    assert is_right(RIGHT | changed) is right


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None,
    reason="only root with iproute2 may make namespaces",
)
@pytest.mark.parametrize("medium", ["star", "switch"])
def test_a_port_of_the_switch_holds_back_as_much_as_it_is_told(medium):
    network = Network(Wiring(1, medium, 80.0, 64 << 10))
    network.build()
    hub = network.host.removesuffix("host") + "hub"

    def longest_s(namespace, device):
        command = ["tc", "-j", "-n", namespace, "qdisc", "show", "dev", device]
        shown = subprocess.run(command, check=True, capture_output=True).stdout
        return json.loads(shown)[0]["options"]["lat"] * 1e-6

    try:
        # What is held back for so long is dropped.
        assert longest_s(hub, "port0") == pytest.approx((64 << 10) * 8 / 80e6, rel=0.15)
        # A device waits for its own card.
        assert longest_s(network.host, "eth0") == pytest.approx(QUEUE_BYTES * 8 / 80e6, rel=0.15)
    finally:
        network.remove()
