"""README's table of what four Pis gain, from committed results.

A row says how it was found. *lab*: measured on emulated devices with the strategy `auto`, in scaled
time, given here in the devices' own. *simulated*: what the planner's simulator predicts for `auto`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from benchmarks.anchors.real import legend, told
from benchmarks.compare import duration
from benchmarks.report import ROOT
from protos.wire.facts import ONNXRUNTIME

RESULTS = ROOT / "benchmarks" / "results"
LAB, HARDWARE = "speedup-pi4-gbe-switch-4.json", "hardware.json"
HEAD = (
    "| network | four | one alone | by onnxruntime | a real one | together | gain | found |",
    "|---" * 8 + "|",
)
# By the names of columns.
KINDS = {"Pi 4s": "pi4-gbe", "Pi 5s": "pi5-gbe"}


@dataclass(frozen=True, slots=True)
class Found:
    """What one Pi alone takes by its fastest engine, and by onnxruntime, and four together."""

    model: str
    alone_s: float
    onnxruntime_s: float
    together_s: float
    how: str

    @property
    def gain(self) -> float:
        """How many times as fast four are."""
        return self.alone_s / self.together_s

    def row(self, name: str, kind: str) -> str:
        """A row of the table."""
        alone, plain, four = map(duration, (self.alone_s, self.onnxruntime_s, self.together_s))
        times = (alone, plain, told(KINDS[kind], self.model), four)
        cells = " | ".join((name, kind, *times, f"{self.gain:.1f}x", self.how))
        return f"| {cells} |".replace("|  |", "| |")


def lab(model: str, strategy: str = "auto") -> Found:
    """As measured on four emulated devices."""
    document = _read(LAB)
    measured, scale = document["models"][model], document["scale"]
    alone = measured["baseline"]
    alone_s, plain_s = alone["latency_s"] * scale, alone["onnxruntime_s"] * scale
    together_s = measured["strategies"][strategy]["latency_s"] * scale
    return Found(model, alone_s, plain_s, together_s, "lab")


def simulated(kind: str, model: str) -> Found:
    """As docs/hardware.md has it."""
    seconds = _read(HARDWARE)["seconds"][kind][model]
    return Found(model, seconds["1"], seconds[ONNXRUNTIME], seconds["4"], "simulated")


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
    lines = (found.row(name, kind) for name, kind, found in rows)
    shown = [(KINDS[kind], found.model) for _, kind, found in rows]
    return "\n".join(["", *HEAD, *lines, "", between(legend(shown)), ""])


def between(sources: str) -> str:
    """What columns are, and why the same row differs between the lab and the simulator."""
    here, there = lab("yolov8n", "auto+boxes"), simulated("pi4-gbe", "yolov8n")
    text = (
        "*One alone*: by the faster engine for it, ncnn or onnxruntime. *A real one*: measured by "
        f"others, in 32 bits ({sources}). *Lab*: measured on an [emulated cluster]"
        "(docs/performance.md) that really runs each network. *Simulated*: predicted from the "
        "operations and bytes of its plan ([assumptions](docs/hardware.md)). Nobody has measured "
        "several real Pis yet. The simulator has four Pi 4s gain "
        f"{there.gain:.1f} times with YOLOv8n, where the lab measures {here.gain:.1f}: it does not "
        "know what tiles cost beyond their operations and bytes."
    )
    return fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _read(file: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / file).read_text())
    return document
