"""AOFL, Figure 11: how much longer LW, EFL and OFL take in slower WiFi, at 1 GHz."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.compare import Row, digits, table
from benchmarks.published import LONGER_AT_25_MBPS, VGG, YOLO
from benchmarks.testbed import CALIBRATIONS, MEASURES, Setting, outcome

STRATEGIES = ("lw", "efl", "ofl")
MBPS = (62.7, 25.1)
COUNTS = (2, 4, 8)


def fig11(counts: Sequence[int] = COUNTS) -> dict[str, Any]:
    """Percent longer than at 93.7 Mbps, on average over the counts."""
    rows = [
        _row(calibration, model, name, counts)
        for calibration in CALIBRATIONS
        for name in STRATEGIES
        for model in (VGG, YOLO)
    ]
    return {"devices": list(counts), "rows": rows}


def fig11_text(result: Mapping[str, Any]) -> str:
    """A line per calibration, strategy and network."""
    columns = {
        "calibration": "",
        "strategy": "",
        "model": "network",
        "cost_62_percent": "62.7 Mbps, cost",
        "simulated_62_percent": "simulated",
        "cost_25_percent": "25.1 Mbps, cost",
        "simulated_25_percent": "simulated",
        "published_25_percent": "published",
    }
    counts = ", ".join(str(count) for count in result["devices"])
    title = f"AOFL, Figure 11: % longer than at 93.7 Mbps, average over {counts} devices"
    return f"{title}\n{table(result['rows'], columns)}"


def _row(calibration: str, model: str, name: str, counts: Sequence[int]) -> Row:
    row: Row = {
        "calibration": calibration,
        "strategy": name,
        "model": model,
        "published_25_percent": LONGER_AT_25_MBPS[name, model],
    }
    for measure in MEASURES:
        for mbps in MBPS:
            longer = mean(
                _seconds(calibration, model, name, count, mbps, measure)
                / _seconds(calibration, model, name, count, None, measure)
                for count in counts
            )
            row[f"{measure}_{int(mbps)}_percent"] = digits(100 * (longer - 1))
    return row


def _seconds(
    calibration: str, model: str, name: str, count: int, mbps: float | None, measure: str
) -> float:
    setting = Setting(calibration, count, mbps=mbps)
    return outcome(model, name, setting).seconds(measure)
