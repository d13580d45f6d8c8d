"""Figures of README, docs/networks.md and docs/faults.md are those of the committed results."""

import json
import re

import pytest

from benchmarks import readme
from benchmarks.report import ROOT


@pytest.mark.parametrize("model", ["resnet50", "yolov8n"])
def test_times_of_the_lab_are_those_of_the_devices(model):
    found = readme.lab(model)
    document = json.loads((readme.RESULTS / readme.LAB).read_text())
    slow = document["models"][model]
    assert document["scale"] < 1
    assert found.alone_s == slow["baseline"]["latency_s"] * document["scale"]
    assert abs(found.gain - slow["strategies"]["auto"]["speedup"]) < 1e-3


def test_every_row_says_how_it_was_found():
    rows = [line for line in readme.table().splitlines() if line.startswith("|")][2:]
    assert len(rows) == 7
    assert all(row.split("|")[-2].strip().startswith(("lab", "simulated")) for row in rows)


# The networks of each row of the page's table, by their names in the result.
KINDS = (
    ("yolov8n", "yolo11n", "yolo26n", "rtdetr-l"),
    ("vit_b_16.script", "swin_t.script"),
    ("ppocr_det@480x640", "nudenet@320x320"),
    (
        *("deit_tiny.script", "repvit_m0_9.script", "fastvit_t8.script", "ssdlite320.script"),
        "fasterrcnn.script",
    ),
    (
        *("mobilenetv4_conv_small.script", "efficientvit_b0.script", "levit_128.script"),
        *("convnextv2_atto.script", "mobilevit.script"),
    ),
)


def test_the_gains_of_kinds_of_networks_are_those_of_the_results():
    rows = json.loads((readme.RESULTS / "exports/simulated.json").read_text())["rows"]
    gains = {row["network"]: row["clusters"][0]["speedup"] for row in rows}
    page = (ROOT / "docs" / "networks.md").read_text()
    table = page.partition("## How much networks gain")[2].partition("[Results]")[0]
    shown = [tuple(map(float, pair)) for pair in re.findall(r"\| ([\d.]+) to ([\d.]+) \|", table)]
    kinds = [[gains[name] for name in names] for names in KINDS]
    assert shown == [(round(min(kind), 1), round(max(kind), 1)) for kind in kinds]


def test_the_losses_of_a_coordinator_are_those_of_the_results():
    parts = json.loads((readme.RESULTS / "pair.json").read_text())["takeover_s"]
    page = (ROOT / "docs" / "faults.md").read_text()
    shown = re.findall(r"^\| .* \| ([\d.]+) \(([\d.]+)\)", page, re.MULTILINE)
    order = ("kills", "nodes", "pauses", "upgrades", "partitions", "machines")
    assert shown == [tuple(f"{seconds:.1f}" for seconds in parts[name]) for name in order]
