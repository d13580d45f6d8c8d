"""`imbrex trace` of real requests."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from coordinator.answers import PlanChoice
from imbrex.calls import plain
from tests.cli.run_cli import refused
from tests.commands.conftest import Live


def exchanging(live: Live, file: Path) -> Path:
    """A plan of two devices whose tiles go from peer to peer."""
    plan = plain(live.client.plan("tiny", PlanChoice("lw")))
    for number, block in enumerate(plan["blocks"]):
        assert len({tile["device"] for tile in block["tiles"]}) == 2
        block["barrier"] = False
        block["exchange"] = "peer" if number else "host"
    file.write_text(json.dumps(plan))
    return file


def test_a_request_of_peers_has_a_row_for_each_device_and_link(live: Live, tmp_path: Path) -> None:
    plan = exchanging(live, tmp_path / "plan.json")
    asked = live.ask("infer", live.tensors, "--model", "tiny", "--plan", plan, "--json")
    answer = asked.json()
    file = tmp_path / "trace.json"
    told = live.ask("trace", answer["request_id"], "-o", file, "--json").json()
    trace = json.loads(file.read_text())
    events = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    rows = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in trace["traceEvents"]
        if each["name"] == "thread_name"
    }
    assert told["events"] == len(events)
    assert told["rows"] == len(rows)

    called = {name.partition(" (")[0] for name in rows.values()}
    devices = {"worker-1", "worker-2"}
    links = {f"{a} to {b}" for a in {"host", *devices} for b in {"host", *devices} if a != b}
    assert called == {answer["request_id"], *devices, *links}

    blocks = len(json.loads(plan.read_text())["blocks"])
    computed = Counter(each["name"] for each in events if each["cat"] == "devices")
    assert computed == {f"block {k}": 2 for k in range(blocks)}
    moved = sum(each["args"]["bytes"] for each in events if each["name"].startswith("halo"))
    assert moved == answer["bytes"]["halo"] > 0

    whole = next(each for each in events if each["name"] == "tiny")
    for each in events:
        # Loopback's round trips, hence its clocks' offsets, err by less than a millisecond;
        # pauses of this machine do not matter, as they delay the end of the request too.
        assert each["ts"] >= -5_000
        assert each["ts"] + each["dur"] <= whole["ts"] + whole["dur"] + 5_000
    lanes: dict[tuple[int, int], float] = {}
    for each in sorted(events, key=lambda each: each["ts"]):
        row = each["pid"], each["tid"]
        assert each["ts"] >= lanes.get(row, -1e9) - 0.2, "bars of one row overlap"
        lanes[row] = each["ts"] + each["dur"]


def test_an_unknown_request_is_refused_with_the_last_one(live: Live, tmp_path: Path) -> None:
    last = live.ask("infer", live.tensors, "--model", "tiny", "--json").json()["request_id"]
    said = live.refuses("trace", "nobody", "-o", tmp_path / "trace.json")
    assert "'nobody'" in said
    assert last in said
    assert not (tmp_path / "trace.json").exists()


def test_a_file_that_cannot_be_written_is_named(live: Live, tmp_path: Path) -> None:
    last = live.ask("infer", live.tensors, "--model", "tiny", "--json").json()["request_id"]
    said = live.refuses("trace", last, "-o", tmp_path / "nowhere" / "trace.json")
    assert "nowhere" in said
    assert "--output" in said


def test_trace_without_a_coordinator_says_how_to_start_one(tmp_path: Path) -> None:
    ran = refused("trace", "x", "-o", tmp_path / "trace.json", "--url", "http://127.0.0.1:9")
    assert "imbrex coordinator" in ran.err
