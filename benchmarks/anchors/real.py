"""What one real device was measured to take, by others and in 32 bits: what tables show beside what
is charged or predicted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.compare import duration
from benchmarks.published import SECONDS
from benchmarks.report import ROOT
from protos.wire.facts import ONNXRUNTIME

FILE = ROOT / "benchmarks" / "anchors.json"
# OpenCV's times stand for onnxruntime's, where nobody has published these, under their own name.
_ENGINES = {"ncnn": "ncnn", ONNXRUNTIME: ONNXRUNTIME, "opencv": "OpenCV"}
_AOFL = "AOFL"


@dataclass(frozen=True, slots=True)
class Measured:
    """A published time."""

    engine: str
    seconds: float
    source: str

    def __str__(self) -> str:
        return f"{_ENGINES.get(self.engine, self.engine)} {duration(self.seconds)}"


@cache
def document() -> Any:
    """The published times, as `rows`, and their `sources`."""
    return json.loads(FILE.read_text())


def measured(kind: str, network: str) -> dict[str, Measured]:
    """Times of a device like that of a preset, by engine."""
    if kind == "pi3-1ghz":
        seconds = SECONDS.get((network, 1.0, "single", 1))
        return {"darknet": Measured("Darknet", seconds, _AOFL)} if seconds else {}
    device = kind.partition("-")[0]
    found = {
        row["engine"]: Measured(row["engine"], row["ms"] / 1e3, row["source"])
        for row in document()["rows"]
        if (row["device"], row["network"], row["precision"]) == (device, network, "f32")
        and row["engine"] in _ENGINES
    }
    if ONNXRUNTIME in found:
        found.pop("opencv", None)
    return dict(sorted(found.items()))


def told(kind: str, network: str) -> str:
    """All of them, with engines and sources; empty if nobody has published one."""
    found = list(measured(kind, network).values())
    if len({row.source for row in found}) == 1:
        return f"{', '.join(map(str, found))} ({found[0].source})"
    return ", ".join(f"{row} ({row.source})" for row in found)


def legend(shown: Iterable[tuple[str, str]]) -> str:
    """The sources of what is told of these kinds and networks."""
    names = {row.source for pair in shown for row in measured(*pair).values()}
    return "; ".join(f"{name}: {document()['sources'][name]}" for name in sorted(names))
