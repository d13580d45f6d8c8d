"""README's table of what four Pis gain, from committed results.

A row says how it was found. *lab*: measured on emulated devices with the strategy `auto`, in scaled
time, given here in the devices' own. *simulated*: what the planner's simulator predicts for `auto`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from benchmarks.compare import duration
from benchmarks.report import ROOT

RESULTS = ROOT / "benchmarks" / "results"
# Of one Pi 4 and onnxruntime, in benchmarks/anchors.json.
PUBLISHED_MS = 560
LAB, HARDWARE = "speedup-pi4-gbe-switch-4.json", "hardware.json"
HEAD = "| network | four | one alone | together | gain | found |"


@dataclass(frozen=True, slots=True)
class Found:
    """What one Pi alone takes, and four together."""

    alone_s: float
    together_s: float
    how: str

    @property
    def gain(self) -> float:
        """How many times as fast four are."""
        return self.alone_s / self.together_s

    def cells(self) -> tuple[str, ...]:
        """The right columns."""
        times = map(duration, (self.alone_s, self.together_s))
        return (*times, f"{self.gain:.1f}x", self.how)


def lab(model: str, strategy: str = "auto") -> Found:
    """As measured on four emulated devices."""
    document = _read(LAB)
    measured, scale = document["models"][model], document["scale"]
    alone_s = measured["baseline"]["latency_s"] * scale
    together_s = measured["strategies"][strategy]["latency_s"] * scale
    return Found(alone_s, together_s, "lab")


def simulated(kind: str, model: str) -> Found:
    """As docs/hardware.md has it."""
    seconds = _read(HARDWARE)["seconds"][kind][model]
    return Found(seconds["1"], seconds["4"], "simulated")


def table() -> str:
    """Markdown."""
    rows = (
        ("YOLOv8n, 640x640", "Pi 4s", lab("yolov8n", "auto+boxes")),
        ("", "Pi 5s", simulated("pi5-gbe", "yolov8n")),
        ("ResNet-50, 224x224", "Pi 4s", lab("resnet50")),
        ("", "Pi 5s", simulated("pi5-gbe", "resnet50")),
        ("ResNet-18, 224x224", "Pi 4s", lab("resnet18")),
        ("MobileNetV2, 224x224", "Pi 4s", simulated("pi4-gbe", "mobilenetv2")),
        ("", "Pi 5s", simulated("pi5-gbe", "mobilenetv2")),
    )
    cells = (f"| {' | '.join((name, kind, *found.cells()))} |" for name, kind, found in rows)
    lines = (line.replace("|  |", "| |") for line in cells)
    return "\n".join(["", HEAD, "|---" * 6 + "|", *lines, "", between(), ""])


def between() -> str:
    """Why the same row differs between a real Pi, the lab and the simulator."""
    here, there = lab("yolov8n", "auto+boxes"), simulated("pi4-gbe", "yolov8n")
    text = (
        "Nobody has measured these on real Pis yet. *Lab*: measured on an [emulated cluster]"
        "(docs/performance.md) that really runs each network. *Simulated*: predicted from the "
        "operations and bytes of its plan ([assumptions](docs/hardware.md)). One real Pi 4 was "
        f"measured to take {PUBLISHED_MS} ms for YOLOv8n [Ultralytics 8.2's table]; the simulator "
        f"has it take {duration(there.alone_s)}, the lab {duration(here.alone_s)}. The simulator "
        f"has four gain {there.gain:.1f} times there, where the lab measures {here.gain:.1f}: it "
        "does not know what tiles cost beyond their operations and bytes."
    )
    return fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _read(file: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / file).read_text())
    return document
