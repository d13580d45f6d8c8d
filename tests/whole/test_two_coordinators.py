"""Two coordinators see each other on shared workers; in one state directory there is one."""

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import structlog

from coordinator.costs.rates import flop_per_s
from coordinator.devices import children, connection
from coordinator.devices import other_coordinators as others
from coordinator.service import Coordinator
from tests import forked
from tests.devices.support import worker_process
from tests.waiting import until
from tests.whole.cluster import assert_right, coordinator, question
from worker.trust.coordinators_seen import LATELY_S, Hosts

MODEL = "digits"


async def test_coordinators_of_the_same_workers_see_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FACTS_INTERVAL_S", 0.1)
    names = iter(["hall", "attic"])
    monkeypatch.setattr("coordinator.trust.trust.socket.gethostname", lambda: next(names))
    feeds, whole = question(MODEL)
    async with worker_process(tmp_path / "worker") as worker:
        with structlog.testing.capture_logs() as logged:
            async with (
                coordinator(tmp_path / "hall", [worker.address]) as hall,
                coordinator(tmp_path / "attic", [worker.address]) as attic,
            ):
                for host, other in ((hall, "attic"), (attic, "hall")):
                    await until(
                        lambda host=host: any(d.shared_with for d in host.device_statuses())
                    )
                    (told,) = host.device_statuses()
                    assert told.shared_with == (other,)
                    assert f"another coordinator: {other}" in told.reason
                    (found,) = [
                        f
                        for f in (await host.doctor.examine()).findings
                        if f.code == "shared_devices"
                    ]
                    assert other in found.cause
                    assert told.name in found.cause
                    assert_right(await host.infer(MODEL, feeds), whole)
        warned = [each for each in logged if "other coordinators" in each["event"]]
        assert {tuple(each["coordinators"]) for each in warned} == {("hall",), ("attic",)}


async def test_coordinator_plans_with_what_the_other_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FACTS_INTERVAL_S", 0.1)
    monkeypatch.setattr(others, "PERIOD_S", 1.0)
    feeds, whole = question(MODEL)

    def rate(host: Coordinator) -> float:
        (device,) = host.devices.cluster().devices
        return flop_per_s(device.costs)

    async with (
        worker_process(tmp_path / "worker", PACE="0.1") as worker,
        coordinator(tmp_path / "busy", [worker.address]) as busy,
        coordinator(tmp_path / "idle", [worker.address]) as idle,
    ):
        for _ in range(4):  # what they show of the device's rate is taken in
            await idle.infer(MODEL, feeds)
        await asyncio.sleep(0)
        alone = rate(idle)
        asking = asyncio.create_task(_ask_all_the_time(busy, feeds))
        try:
            await until(
                lambda: idle.device_statuses()[0].others_share > 0.3 and rate(idle) < 0.77 * alone
            )
            # What the other has computed alone is forgotten by and by.
            await until(lambda: busy.device_statuses()[0].others_share < 0.2)
            assert_right(await idle.infer(MODEL, feeds), whole)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: idle.device_statuses()[0].others_share < 0.1)


async def _ask_all_the_time(host: Coordinator, feeds: Mapping[str, np.ndarray]) -> None:
    while True:
        await host.infer(MODEL, feeds)


async def test_alone_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FACTS_INTERVAL_S", 0.1)
    async with worker_process(tmp_path / "worker") as worker:
        for _ in range(2):  # the same one again, after a restart
            async with coordinator(tmp_path / "hall", [worker.address]) as hall:
                first = next(iter(hall.devices.pool.ready().values())).last_seen_s
                await until(
                    lambda hall=hall, first=first: (
                        next(iter(hall.devices.pool.ready().values())).last_seen_s > first
                    )
                )
                assert hall.device_statuses()[0].shared_with == ()


def test_coordinator_that_has_not_greeted_lately_is_gone() -> None:
    hosts = Hosts()
    assert hosts.greeted("a hall", "1", 0.0) == []
    assert hosts.greeted("b attic", "2", 1.0) == ["a hall"]
    assert hosts.greeted("b attic", "2", LATELY_S + 0.5) == []
    for number in range(100):
        hosts.greeted(f"{number} made up", "3", 40.0)
    assert len(hosts.greeted("b attic", "2", 40.0)) == 15


def test_a_restart_is_nobody_else_and_a_copy_is() -> None:
    hosts = Hosts()
    hosts.greeted("a hall", "before", 0.0)
    assert hosts.greeted("a hall", "after", 1.0) == []
    assert hosts.greeted("a hall", "after", 2.0) == []
    assert hosts.greeted("b attic", "1", 3.0) == ["a hall"]
    # What was thought to be over greets again: these are two.
    assert hosts.greeted("a hall", "before", 4.0) == ["a hall", "b attic"]
    assert hosts.greeted("a hall", "after", 5.0) == ["b attic", "a hall"]


async def test_a_copy_on_the_same_machine_is_told_from_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FACTS_INTERVAL_S", 0.1)
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "coordinator-id").write_text("0123456789ab")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    copied = f"a copy of this one on {socket.gethostname()}"
    async with (
        worker_process(tmp_path / "worker") as worker,
        coordinator(tmp_path / "original", [worker.address]) as original,
        coordinator(tmp_path / "copy", [worker.address]) as copy,
    ):
        for host in (original, copy):
            await until(lambda host=host: any(d.shared_with for d in host.device_statuses()))
            (told,) = host.device_statuses()
            assert told.shared_with == (copied,)
            assert copied in told.reason
            (found,) = [
                f for f in (await host.doctor.examine()).findings if f.code == "shared_devices"
            ]
            assert "a copy of this coordinator" in found.cause
            assert "init --replace" in found.cure


def test_a_second_one_in_a_state_directory_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    arguments = ["coordinator", "--no-mdns", "--port", "0", "--state-dir", str(state)]
    arguments += ["--no-host-computes"]
    first = forked.start("coordinator", arguments, state, state / "ready.json")
    try:
        children.wait_until(lambda: first.ready() is not None, "no coordinator", [first], 60)
        second = subprocess.run(
            [sys.executable, "-m", "imbrex", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 1
        assert f"another coordinator uses the state directory {state}" in second.stderr
        assert first.process.poll() is None
        assert first.ready() is not None
    finally:
        children.stop([first])
