"""A device that goes keeps its name, what it is and its last rate."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from coordinator.devices.addresses import seconds_ago
from tests.cli.run_cli import imbrex
from tests.serving.processes import serving, wait
from tests.serving.test_metrics import read


def test_a_worker_that_is_killed_stays_known(tmp_path: Path) -> None:
    with serving(tmp_path, ["--model", "digits"]) as service:

        def named(name: str) -> dict[str, Any]:
            devices = service.get("/v1/devices")["devices"]
            return next(each for each in devices if each["name"] == name)

        before = named("worker-1")
        service.workers[0].process.kill()
        wait(lambda: named("worker-1")["state"] == "waiting" or None)
        after = named("worker-1")
        for key in ("id", "address", "cores", "cpu", "gflops", "memory_bytes"):
            assert after[key] == before[key], key
        assert after["reason"].startswith("worker-1 is off or its worker has stopped; last seen ")
        assert after["reason"].endswith(" s ago")

        (finding,) = service.get("/v1/doctor")["findings"]
        assert (finding["code"], finding["device"]) == ("unreachable", "worker-1")
        assert "connect" not in finding["cause"]
        (row,) = (
            each for each in service.get("/v1/doctor")["checks"] if each["device"] == "worker-1"
        )
        rate = f"{before['gflops']:.1f} GFLOP/s"
        assert re.fullmatch(rf"last seen \d+ s ago; computed at {rate}", row["seen"])

        shown = imbrex("status", "--url", service.url).out
        (line,) = (each for each in shown.splitlines() if each.startswith("worker-1 "))
        assert f" {before['gflops']:.1f} " in line
        assert "last seen" in line

        metrics = read(httpx.get(f"{service.url}/metrics", trust_env=False).text)
        label = (("device", before["id"]), ("name", "worker-1"))
        assert metrics["imbrex_device_ready", label] == 0
        assert metrics["imbrex_device_flop_per_second", label] == before["gflops"] * 1e9
        assert metrics["imbrex_device_link_bytes_per_second", label] == before["mbps"] * 125e3
        assert metrics["imbrex_device_last_seen_timestamp_seconds", label] <= time.time()
        assert ("imbrex_device_throttled", label) not in metrics
        log = service.coordinator.log.read_text()
        (left,) = (line for line in log.splitlines() if "device left" in line)
        assert "name=worker-1" in left
        assert f"gflops={round(before['gflops'], 2)}" in left
        assert re.search(r"last_seen='?\d+ s ago", left)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "0 s ago"), (40, "40 s ago"), (119, "119 s ago"), (300, "5 min ago"), (9000, "2 h ago")],
)
def test_time_since_a_device_was_seen_is_said_in_one_unit(seconds: float, said: str) -> None:
    assert seconds_ago(seconds) == said
