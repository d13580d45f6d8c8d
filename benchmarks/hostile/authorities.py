"""What a cluster's authority depends on: its files, and clocks (H11, H12)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.hostile.attacks import LATE, MB, Happened, Target, attack, comes_true
from benchmarks.store import free_port
from coordinator.devices import children
from coordinator.trust.authority import Authority
from protos.trust.identity import now_utc

FOLDER, KEY = "cluster", "authority.key.pem"
FAKETIME = "libfaketime.so.1"
START_S = 60.0


def _listens(pid: int) -> bool:
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return False
    return any(connection.status == psutil.CONN_LISTEN for connection in connections)


def _half(state: Path) -> None:
    key = state / FOLDER / KEY
    key.write_bytes(key.read_bytes()[: key.stat().st_size // 2])


_HARMS: dict[str, Callable[[Path], object]] = {
    "half of the key": _half,
    "no key": lambda state: (state / FOLDER / KEY).unlink(),
    "no folder": lambda state: shutil.rmtree(state / FOLDER),
}


def _started(command: list[str]) -> tuple[bool, int, str]:
    """Whether it listened, its exit code, and what it said."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        comes_true(lambda: process.poll() is not None or _listens(process.pid), START_S)
        listened = process.poll() is None and _listens(process.pid)
        process.kill()
        said = process.stderr.read() if process.stderr else ""
    return listened, process.returncode, said


@attack("H11", "it names the file and never listens", most_grown_bytes=32 * MB)
def an_authority_that_is_damaged(_target: Target) -> Happened:
    """Half of the authority's key is missing, all of it, or its folder; the coordinator starts."""
    told = []
    for harm, do in _HARMS.items():
        with tempfile.TemporaryDirectory() as name:
            state, port = Path(name), free_port()
            Authority.make(state, now_utc())
            do(state)
            command = [sys.executable, "-m", "imbrex", "coordinator", "--no-mdns"]
            command += ["--port", str(port), "--state-dir", name, "--no-host-computes"]
            listened, code, said = _started(command)
            if listened or code != 1 or str(state / FOLDER / KEY) not in said:
                told.append(f"{harm}: exit {code}, listened {listened}: {said[-200:]}")
    return Happened(not told, "; ".join(told) or f"refused: {', '.join(_HARMS)}")


@attack(
    "H12",
    "status, doctor and the worker's log name clock and dates",
    place="certified",
    most_grown_bytes=64 * MB,
)
def a_worker_whose_clock_is_a_year_off(target: Target) -> Happened:
    """A member starts whose clock says that it is the year after next."""
    library = next(Path("/usr/lib").glob(f"*/faketime/{FAKETIME}"), None)
    if library is None:
        return Happened(False, f"{FAKETIME} is missing. apt-get install libfaketime")
    within = ["env", f"LD_PRELOAD={library}", "FAKETIME=+400d", "DONT_FAKE_MONOTONIC=1"]
    within += ["FAKETIME_DONT_FAKE_MONOTONIC=1"]
    state = target.folder / LATE
    arguments = ["worker", "--name", LATE, "--no-mdns", "--state-dir", str(state)]
    arguments += ["--port", target.late.rpartition(":")[2]]
    child = children.start(LATE, arguments, state, state / "ready.json", within)
    try:
        with httpx.Client(base_url=target.url, timeout=60) as client:
            reason = ""

            def is_named() -> bool:
                nonlocal reason
                rows = client.get("/v1/devices").json()["devices"]
                reason = next((e["reason"] for e in rows if e["address"] == target.late), "")
                return "clock" in reason

            comes_true(is_named, START_S)
            findings = client.get("/v1/doctor").json()["findings"]
    finally:
        children.stop([child])
    today = f"{now_utc():%Y-%m-%d}"
    missing = [
        where
        for where, said in (
            ("status", reason),
            ("doctor", " ".join(finding["cause"] for finding in findings)),
            ("the worker's log", child.log.read_text()),
        )
        if "clock" not in said or (where != "the worker's log" and today not in said)
    ]
    return Happened(not missing, f"does not name it: {missing}" if missing else reason[:200])
