"""Status, page and metrics say which engine computes on a device, and how much faster it was."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from math import isnan
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from rich.console import Console

from coordinator.answers import DeviceStatus, Fact
from imbrex.terminal import devices_table, engine_of
from tests.serving.browser import browser, errors, needs_browser, text
from tests.serving.in_place import InPlace
from tests.serving.processes import serving, wait
from tests.serving.test_metrics import read

FASTER: dict[str, Fact] = {"engine": "openvino", "speedup": 1.86}
PLAIN: dict[str, Fact] = {"engine": "onnxruntime", "speedup": 0.0}
SEVERAL: dict[str, Fact] = {
    **{"engine": "ncnn+openvino", "speedup": 1.5},
    "engines": (
        {"name": "ncnn", "programs": 7, "speedup": 1.62},
        {"name": "openvino", "programs": 1, "speedup": 1.1},
    ),
    "kept": ({"why": "ncnn does not take the operator Erf", "programs": 2, "is_lacking": True},),
}
LIMITED: dict[str, Fact] = {
    "engine": "hailo",
    "speedup": 0.0,
    "limits": {"networks": (), "shapes": ("1x3x640x640",), "dtypes": ()},
}
# The page's own module draws one device; what it says of it, at once, before the next state does.
DRAWN = """
const [device, done] = arguments;
import("/page/devices.js").then(({ showDevices }) => {
  showDevices([device]);
  done(document.querySelector("#devices .facts").textContent);
});
"""


def device(name: str, facts: dict[str, Fact]) -> DeviceStatus:
    sample = InPlace.device_statuses(None)[0]  # type: ignore[arg-type]
    return replace(sample, id=f"id-{name}", name=name, mbps=900.0, facts=facts)


DEVICES = [
    device("pi-1", FASTER),
    device("pi-2", PLAIN),
    device("pi-3", LIMITED),
    device("pi-4", SEVERAL),
]


@pytest.fixture
def mixed(coordinator: InPlace) -> InPlace:
    coordinator.device_statuses = lambda: DEVICES  # type: ignore[method-assign]
    return coordinator


def test_status_shows_the_engine_of_each_device() -> None:
    out = io.StringIO()
    Console(file=out, width=200).print(devices_table([asdict(each) for each in DEVICES]))
    heading, *rows = out.getvalue().splitlines()
    assert "engine" in heading
    found = {row.split()[0]: row for row in rows}
    assert "openvino (1.86x)" in found["pi-1"]
    assert " onnxruntime " in found["pi-2"]
    assert "hailo, " in found["pi-3"]
    assert "ncnn 7 (1.62x), openvino 1 (1.10x), onnxruntime 2" in found["pi-4"]
    assert "x)" not in found["pi-2"] + found["pi-3"]
    assert engine_of({}) == ""


async def test_metrics_have_engines_speedups_and_programs(
    http: httpx.AsyncClient, mixed: InPlace
) -> None:
    found = read((await http.get("/metrics")).text)
    name = "imbrex_device_engine_speedup"
    speedups = {
        tuple(dict(labels)[key] for key in ("name", "engine")): None if isnan(value) else value
        for (metric, labels), value in found.items()
        if metric == name
    }
    assert speedups == {
        ("pi-1", "openvino"): 1.86,
        ("pi-2", "onnxruntime"): 1.0,
        ("pi-3", "hailo"): None,
        ("pi-4", "ncnn"): 1.62,
        ("pi-4", "openvino"): 1.1,
        ("pi-4", "onnxruntime"): 1.0,
    }
    programs = {
        dict(labels)["engine"]: value
        for (metric, labels), value in found.items()
        if metric == "imbrex_device_engine_programs"
    }
    assert programs == {"ncnn": 7, "openvino": 1, "onnxruntime": 2}


async def test_page_is_told_engines_and_speedups(app: FastAPI, mixed: InPlace) -> None:
    found = app.state.page.state()["devices"]
    assert [(each["engine"], each["speedup"]) for each in found] == [
        ("openvino", 1.86),
        ("onnxruntime", 0.0),
        ("hailo", 0.0),
        ("ncnn+openvino", 1.5),
    ]
    assert [share["programs"] for share in found[3]["engines"]] == [7, 1]


@needs_browser
async def test_the_page(
    http: httpx.AsyncClient, app: FastAPI, mixed: InPlace, tmp_path: Path
) -> None:
    told = app.state.page.state()["devices"]
    with serving(tmp_path, ["--model", "digits"], workers=1) as running, browser() as driver:
        driver.get(running.url)
        wait(lambda: "1 device ready" in text(driver, "status"))
        shown = [driver.execute_async_script(DRAWN, json.loads(json.dumps(each))) for each in told]
        assert "openvino, 1.86 \u00d7 onnxruntime" in shown[0]
        assert shown[1].endswith("· onnxruntime")
        assert "\u00d7" not in shown[1] + shown[2]
        assert "hailo: " in shown[2]
        assert "ncnn, 7 programs, 1.62 \u00d7 onnxruntime; openvino, 1 programs" in shown[3]
        assert errors(driver) == []
