"""Cables pulled in the middle of a request."""

import os
import threading
import urllib.request

import pytest

from benchmarks.lab.cluster import Computer, Lab, lab
from benchmarks.lab.cuts import cut, cut_one_way, cut_peers
from coordinator.answers import PlanChoice
from imbrex.kinds.presets import Preset
from models.digits.examples import examples
from tests.serving.processes import wait

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may make network namespaces"),
]

SLOW = Computer(pace=0.02, message_ms=0.0, byte_ns=0.0, task_ms=0.0)


HARMS = {
    "cut": lambda network: cut(network, 1),
    "one way": lambda network: cut_one_way(network, 1),
    "peers": lambda network: cut_peers(network, 1, 2),
}


@pytest.mark.parametrize("strategy", ["ofl", "halo"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_request_survives_it(harm: str, strategy: str):
    preset = Preset(gflops=1.0, mbps=200.0, message_ms=0.0, medium="switch")
    picture = examples()[0].path.read_bytes()
    choice = PlanChoice(strategy)
    with lab(preset, [SLOW] * 3, print, models=["digits"], profile=False) as running:

        def ask() -> list[object]:
            return running.client.infer("digits", picture, "image/png", choice).predictions

        right = ask()
        assert ask() == right
        answers: list[list[object]] = []
        asking = threading.Thread(target=lambda: answers.append(ask()))
        asking.start()
        wait(lambda: _busy(running))
        mend = HARMS[harm](running.network)
        asking.join(60)
        assert answers == [right]
        assert ask() == right
        mend()
        wait(lambda: _ready(running) == 3)
        assert ask() == right


def test_clients_that_are_kept_apart_are_found_out_and_planned_without():
    preset = Preset(gflops=1.0, mbps=200.0, message_ms=0.0, medium="switch")
    picture = examples()[0].path.read_bytes()
    choice = PlanChoice("halo")
    with lab(preset, [SLOW] * 3, print, models=["digits"], profile=False) as running:

        def exchanges() -> set[str]:
            return {block.exchange for block in running.client.plan("digits", choice).blocks}

        def used() -> set[str]:
            blocks = running.client.plan("digits", choice).blocks
            return {tile.device for block in blocks for tile in block.tiles}

        def apart() -> bool:
            return any(each.unreachable for each in running.client.devices())

        right = running.client.infer("digits", picture, "image/png", choice).predictions
        assert "peer" in exchanges()
        assert not apart()
        cut_peers(running.network, 1, 2)
        mend = cut(running.network, 1)
        wait(lambda: _ready(running) == 2)
        mend()
        wait(apart)
        unreachable = {each.name: each.unreachable for each in running.client.devices()}
        assert unreachable == {"host": (), "device-1": ("device-2",), "device-2": ("device-1",)}
        wait(lambda: len(used()) < 3 or exchanges() == {"host"})
        answer = running.client.infer("digits", picture, "image/png", choice)
        assert answer.predictions == right


def _busy(running: Lab) -> bool:
    with urllib.request.urlopen(f"{running.client.url}/metrics", timeout=10) as answer:
        return b"\nimbrex_in_flight 1.0" in answer.read()


def _ready(running: Lab) -> int:
    return sum(each.state == "ready" for each in running.client.devices())
