"""One request can be followed by its id through the logs of the coordinator and of each worker."""

import asyncio
import re

import pytest

from protos.daemon.logs import log_to_stderr
from tests.devices.support import worker_process
from tests.whole.cluster import coordinator, question

MODEL = "lenet5"


@pytest.fixture
def logged():
    log_to_stderr(level="debug")
    yield
    log_to_stderr()


async def test_a_request_is_followed_by_its_id_from_the_coordinator_to_each_worker(
    tmp_path, logged, capfd
) -> None:
    feeds, _ = question(MODEL)
    async with (
        worker_process(tmp_path / "one", LOG_LEVEL="debug") as one,
        worker_process(tmp_path / "other", LOG_LEVEL="debug") as other,
    ):
        async with coordinator(tmp_path / "host", [one.address, other.address], "lw") as host:
            answer = await host.infer(MODEL, feeds, "front-door-17")
            host.settle()
        of_host = tasks_in(capfd.readouterr().err, "task ")
        of_workers = []
        for each in (one, other):
            each.process.terminate()
            log = await asyncio.to_thread(each.process.stderr.read)
            of_workers += tasks_in(log.decode(), "task computed ")
    assert sorted(of_host) == sorted(of_workers)
    assert len(of_host) > len(answer.devices) > 1


def tasks_in(log: str, event: str) -> list[str]:
    """The tasks of the request in such lines."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
    lines = [line for line in plain.splitlines() if f"] {event} " in line]
    lines = [line for line in lines if "request=front-door-17" in line]
    return [line.split("task=")[1].split()[0] for line in lines]
