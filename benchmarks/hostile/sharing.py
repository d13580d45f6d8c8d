"""A second coordinator (H15)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import httpx

from benchmarks.hostile.attacks import MB, Happened, Target, attack, comes_true
from coordinator.devices import children

SEEN_S = 60.0


def _started(target: Target, state: Path) -> children.Child:
    arguments = ["coordinator", "--no-mdns", "--port", "0"]
    arguments += ["--state-dir", str(state), "--no-host-computes", "--no-profile"]
    for address in target.workers:
        arguments += ["--worker", address]
    ready = state / "ready.json"
    return children.start("another", arguments, state.with_suffix(".log"), ready)


def _url(child: children.Child) -> str:
    children.wait_until(lambda: child.ready() is not None, "it has not started", [child], SEEN_S)
    return str((child.ready() or {})["url"])


def _shared(url: str) -> tuple[bool, bool]:
    """Whether status names another coordinator of every device, and the doctor does."""
    with httpx.Client(base_url=url, timeout=60) as client:
        rows: list[dict[str, Any]] = client.get("/v1/devices").json()["devices"]
        findings = client.get("/v1/doctor").json()["findings"]
    shared = [row["shared_with"] for row in rows if row["state"] == "ready"]
    return bool(shared) and all(shared), any(e["code"] == "shared_devices" for e in findings)


@attack("H15", "both say so in status and doctor", most_grown_bytes=64 * MB)
def a_second_coordinator_of_the_same_workers(target: Target) -> Happened:
    """Somebody starts another coordinator for the same devices."""
    with tempfile.TemporaryDirectory() as name:
        child = _started(target, Path(name) / "state")
        try:
            urls = (target.url, _url(child))
            comes_true(lambda: all(all(_shared(url)) for url in urls), SEEN_S)
            seen = [_shared(url) for url in urls]
        finally:
            children.stop([child])
    return Happened(all(map(all, seen)), f"(status, doctor) of both: {seen}")


@attack("H15", "the second is refused, and says why", quick=True, most_grown_bytes=32 * MB)
def a_second_coordinator_on_the_same_state(target: Target) -> Happened:
    """Somebody starts a coordinator on the state directory of the one that runs."""
    state = target.folder / "coordinator"
    before = (state / "ready.json").read_text()
    child = _started(target, state)
    try:
        code = child.process.wait(SEEN_S)
    finally:
        children.stop([child])
    said = child.log.read_text()
    ok = code == 1 and str(state) in said and (state / "ready.json").read_text() == before
    return Happened(ok, f"exit {code}: {said.strip()[-200:]}")
