"""`imbrex drain`, `resume` and `doctor` on a live cluster."""

from __future__ import annotations

import json
import re

import httpx
from pydantic import TypeAdapter

from coordinator.answers import DeviceStatus
from coordinator.devices.statuses import _unseen
from protos.wire.facts import DeviceId
from tests.commands.conftest import Live, wait_for


def state_of(live: Live, name: str) -> str:
    return next(each.state for each in live.client.devices() if each.name == name)


def test_out_and_back(live: Live) -> None:
    drained = live.ask("drain", "worker-2")
    try:
        assert drained.code == 0, drained
        assert "worker-2 is drained: it can be switched off" in drained.out
        assert "`imbrex resume worker-2`, the other device computes" in drained.out
        assert state_of(live, "worker-2") == "drained"
        row = next(line for line in live.ask("status").out.splitlines() if "worker-2" in line)
        assert "drained" in row
        assert "imbrex resume worker-2" in row
        metrics = httpx.get(f"{live.client.url}/metrics").text
        assert f'imbrex_device_drained{{device="{ident(live)}",name="worker-2"}} 1.0' in metrics
        again = json.loads(live.ask("drain", "worker-2", "--json").out)
        assert (again["name"], again["state"]) == ("worker-2", "drained")
    finally:
        resumed = live.ask("resume", "worker-2")
    assert resumed.code == 0
    assert "worker-2 is ready, and used again" in resumed.out
    wait_for(lambda: state_of(live, "worker-2") == "ready")
    assert "neither drained nor in quarantine" in live.refuses("resume", "worker-2")


def ident(live: Live) -> str:
    return next(each.id for each in live.client.devices() if each.name == "worker-2")


def test_a_device_that_was_never_seen_is_told_of() -> None:
    told = TypeAdapter(DeviceStatus)
    never = _unseen(DeviceId("a" * 16))
    assert told.validate_json(told.dump_json(never)) == never


def test_drain_and_resume_of_unknown_names_list_the_devices(live: Live) -> None:
    for command in ("drain", "resume"):
        said = live.refuses(command, "nobody")
        assert "nobody" in said
        assert "worker-1, worker-2" in said


def test_doctor_exits_with_one_only_for_errors(live: Live) -> None:
    ran = live.ask("doctor", "--json")
    told = json.loads(ran.out)
    errors = [each for each in told["findings"] if each["severity"] == "error"]
    assert told["ok"] is not bool(errors)
    assert ran.code == bool(errors)
    network = {"one_way", "unreachable_peers", "client_isolation", "unreachable", "not_examined"}
    assert not network & {each["code"] for each in told["findings"]}
    rows = {(each["device"], each["what"]): each["state"] for each in told["checks"]}
    for name in ("worker-1", "worker-2"):
        assert rows[name, "connection"] == rows[name, "neighbours"] == "ok"
    shown = live.ask("doctor")
    assert "reaches 1 of 1" in shown.out
    # Counters of the network may find something only now.
    assert ("no problem found" in shown.out) is not bool(re.findall(r"\[\w+\]$", shown.out, re.M))
    assert shown.code == bool(re.search(r"^error", shown.out, re.M))
