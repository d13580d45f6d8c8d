"""What a cluster believes of links that a shaper limits: real TCP, real queues."""

import os

import pytest

from benchmarks.lab.cluster import Computer, Lab, lab
from coordinator.answers import PlanChoice
from imbrex.kinds.presets import Preset
from models.digits.examples import examples
from tests.serving.processes import wait

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may make network namespaces"),
]

MBPS = 40.0


def believed(running: Lab) -> list[float]:
    return [each.mbps for each in running.client.devices() if not each.host]


def right(running: Lab) -> bool:
    return all(found == pytest.approx(MBPS, rel=0.15) for found in believed(running))


@pytest.mark.parametrize("medium", ["star", "switch"])
def test_links_are_found_and_requests_that_share_the_cable_change_nothing(medium: str):
    preset = Preset(gflops=1.0, mbps=MBPS, message_ms=0.0, medium=medium)
    computers = [Computer(pace=0.05, message_ms=3.0, byte_ns=5.0, task_ms=0.0)] * 4
    picture = examples()[0].path.read_bytes()
    with lab(preset, computers, print, models=["digits"], profile=False) as running:
        wait(lambda: right(running))
        for strategy in ("halo", "ofl", "lw", "single"):
            for _ in range(6):
                running.client.infer("digits", picture, "image/png", PlanChoice(strategy))
        assert right(running), believed(running)
