"""`auto` measures one device alone where a division gains little, and goes by that."""

import asyncio
from collections.abc import Callable

from coordinator.answers import Answer
from coordinator.service import Coordinator
from tests.devices.support import worker_process
from tests.whole.cluster import assert_right, coordinator, question

MODEL = "digits"


async def ask_until(host: Coordinator, happens: Callable[[Answer], bool]) -> None:
    """Asks until it happens at an answer; all answers are right."""
    feeds, whole = question(MODEL)
    async with asyncio.timeout(60):
        while True:
            answer = await host.infer(MODEL, feeds)
            assert_right(answer, whole)
            if happens(answer):
                return


async def test_single_device_is_measured_and_computes_all_if_faster(tmp_path) -> None:
    async with (
        worker_process(tmp_path / "one", PACE="0.1") as one,
        worker_process(tmp_path / "other", PACE="0.05") as other,
        coordinator(tmp_path / "host", [one.address, other.address], "auto") as host,
    ):
        await ask_until(host, lambda answer: len(answer.devices) == 2)
        measured = host.devices.measured
        plan, _ = await host.plans.current(MODEL)
        fastest = plan.baseline_device
        await ask_until(host, lambda _: measured.unsplit_s(MODEL, fastest) is not None)
        alone_s = measured.unsplit_s(MODEL, fastest)
        baseline = await host.measuring.baseline(MODEL)
        assert baseline.latency_s / 4 < alone_s < 4 * baseline.latency_s  # beside other tests
        await host.plans.settled()
        # As on a device whose engine is far better at whole maps than at tiles.
        measured.measured_unsplit(MODEL, fastest, alone_s / 10)
        host.plans.devices_changed("measured again", model=MODEL)
        await ask_until(host, lambda answer: answer.devices == (fastest,))
