"""A device that computes plausible numbers which are wrong (H6)."""

from __future__ import annotations

import time
from typing import Any

import httpx

from benchmarks.hostile.attacks import LIE, Happened, Target, attack, comes_true
from coordinator.audit.sampling import YOUNG_CHECKS
from models.digits.examples import examples

LIAR = "worker-1"
# Of the device, until the audit finds it.
ASKED_TASKS = 400
LONGEST_S = 150.0
_QUARANTINED = "quarantined"


def _devices(client: httpx.Client) -> dict[str, dict[str, Any]]:
    return {device["name"]: device for device in client.get("/v1/devices").json()["devices"]}


def _ask(client: httpx.Client) -> None:
    picture = examples()[0].path.read_bytes()
    headers = {"Content-Type": "image/png"}
    client.post("/v1/models/digits/infer", content=picture, headers=headers).raise_for_status()


def _accused(found: dict[str, dict[str, Any]]) -> list[str]:
    """Honest devices that are said to lie."""
    return [n for n, row in found.items() if n != LIAR and row["wrong_tasks"]]


def _lied(target: Target, kind: str) -> Happened:
    lie = target.folder / LIE
    with httpx.Client(base_url=target.url, timeout=60) as client:
        deadline = time.monotonic() + LONGEST_S
        # As long as it is new, it is checked more often.
        while _devices(client)[LIAR]["audited_tasks"] < YOUNG_CHECKS:
            assert time.monotonic() < deadline, "an honest device is not audited"
            _ask(client)
        before = _devices(client)[LIAR]["tasks"]
        lie.write_text(kind)
        while (found := _devices(client))[LIAR]["state"] != _QUARANTINED:
            if found[LIAR]["tasks"] - before > 2 * ASKED_TASKS or time.monotonic() > deadline:
                break
            _ask(client)
        tasks = found[LIAR]["tasks"] - before
        lie.write_text("")
    ok = found[LIAR]["state"] == _QUARANTINED and tasks <= ASKED_TASKS and not _accused(found)
    told = f"{found[LIAR]['state']} after {tasks} tasks; accused wrongly: {_accused(found)}"
    return Happened(ok, told, {"tasks": tasks})


_FOUND = "the audit finds it within 400 of its tasks, and accuses nobody else"


@attack("H6", _FOUND, place="liar", patient_s=30.0)
def a_member_that_adds_noise(target: Target) -> Happened:
    """After honest work a device adds 1 % of noise to all that it computes."""
    return _lied(target, "noise")


@attack("H6", _FOUND, place="liar-zeroed", patient_s=30.0)
def a_member_that_zeroes_a_channel(target: Target) -> Happened:
    """After honest work the first channel of all that a device computes is zeros."""
    return _lied(target, "zeroed")


@attack("H6", "the doctor finds it at once, and accuses nobody else", place="liar-examined")
def a_liar_that_is_examined(target: Target) -> Happened:
    """A device begins to lie, and somebody asks the doctor."""
    with httpx.Client(base_url=target.url, timeout=120) as client:
        (target.folder / LIE).write_text("noise")
        client.get("/v1/doctor").raise_for_status()
        found = _devices(client)
    ok = found[LIAR]["state"] == _QUARANTINED and not _accused(found)
    return Happened(ok, f"{found[LIAR]['state']}; accused wrongly: {_accused(found)}")


@attack("H6", "it never computes for a request", place="liar-from-start")
def a_member_that_lies_from_the_beginning(target: Target) -> Happened:
    """A device that lies already when it joins."""
    with httpx.Client(base_url=target.url, timeout=60) as client:
        comes_true(lambda: _devices(client)[LIAR]["state"] == _QUARANTINED, 30.0)
        for _ in range(20):
            _ask(client)
        found = _devices(client)
    state, tasks = found[LIAR]["state"], found[LIAR]["tasks"]
    ok = state == _QUARANTINED and not tasks and not _accused(found)
    return Happened(ok, f"{state} with {tasks} tasks; accused wrongly: {_accused(found)}")
