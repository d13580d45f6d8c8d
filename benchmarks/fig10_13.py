"""AOFL, Figures 10 and 13b: speed-up over one device by number of devices and clock.

The figures' strategy is OFL (equal tiles on all devices); AOFL, which may leave devices out and
cut unequal tiles, is the row that the acceptance of 15 % is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.compare import Row, digits, percent, signed, table
from benchmarks.published import RESNET, SPEEDUPS, VGG, YOLO
from benchmarks.testbed import CALIBRATIONS, MEASURES, Setting, outcome

STRATEGIES = ("ofl", "aofl")
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8)
CLOCKS = (1.0, 0.5)
TOLERANCE_PERCENT = 15.0


def fig10(counts: Sequence[int] = COUNTS) -> dict[str, Any]:
    """VGG-16 and YOLOv2, by AOFL's cost and simulated, beside the published at 2, 4 and 8."""
    return _speedups((VGG, YOLO), counts)


def fig13(counts: Sequence[int] = COUNTS) -> dict[str, Any]:
    """ResNet-50; published at 500 MHz."""
    return _speedups((RESNET,), counts)


def speedups_text(title: str, result: Mapping[str, Any]) -> str:
    """A line per published value, then every curve."""
    columns = {
        "calibration": "",
        "model": "network",
        "ghz": "GHz",
        "devices": "devices",
        "strategy": "",
        "published": "published",
        "cost": "AOFL's cost",
        "cost_off": "off",
        "simulated": "simulated",
        "simulated_off": "off",
    }
    compared = [
        row | {f"{m}_off": signed(row[f"{m}_deviation_percent"]) for m in MEASURES}
        for row in result["rows"]
    ]
    curves = [
        row
        | {
            "cost": " ".join(f"{value:4.2f}" for value in row["cost"]),
            "bars": "".join(_bar(value) for value in row["cost"]),
        }
        for row in result["curves"]
    ]
    drawn = {key: columns[key] for key in ("calibration", "model", "ghz", "strategy", "cost")}
    counts = ", ".join(str(count) for count in result["devices"])
    within = [
        f"({row['calibration']}) {row['within']} of {row['of']} of AOFL's speed-ups within "
        f"{TOLERANCE_PERCENT:g} % by {row['measure']}"
        for row in result["acceptance"]
    ]
    return "\n".join(
        [
            title,
            table(compared, columns),
            "",
            f"speed-up on {counts} devices, by AOFL's cost (a full bar is 4 times)",
            table(curves, drawn | {"bars": ""}),
            "",
            *within,
        ]
    )


def _bar(speedup: float) -> str:
    """One of eight heights, 4 times being the highest."""
    return " ▁▂▃▄▅▆▇█"[max(0, min(8, round(2 * speedup)))]


def _speedups(models: Sequence[str], counts: Sequence[int]) -> dict[str, Any]:
    rows = [
        _row(calibration, model, ghz, name, count)
        for calibration in CALIBRATIONS
        for model in models
        for ghz in CLOCKS
        for name in STRATEGIES
        for count in SPEEDUPS.get((model, ghz), {})
        if count in counts
    ]
    curves = [
        _curve(calibration, model, ghz, name, counts)
        for calibration in CALIBRATIONS
        for model in models
        for ghz in CLOCKS
        for name in STRATEGIES
    ]
    acceptance = [
        _within(rows, calibration, measure) for calibration in CALIBRATIONS for measure in MEASURES
    ]
    return {"devices": list(counts), "rows": rows, "curves": curves, "acceptance": acceptance}


def _row(calibration: str, model: str, ghz: float, name: str, count: int) -> Row:
    found = outcome(model, name, Setting(calibration, count, ghz))
    published = SPEEDUPS[model, ghz][count]
    row: Row = {
        "calibration": calibration,
        "model": model,
        "ghz": ghz,
        "devices": count,
        "strategy": name,
        "published": published,
    }
    for measure in MEASURES:
        row[measure] = digits(found.speedup(measure))
        row[f"{measure}_deviation_percent"] = percent(found.speedup(measure), published)
    return row


def _curve(calibration: str, model: str, ghz: float, name: str, counts: Sequence[int]) -> Row:
    found = [outcome(model, name, Setting(calibration, count, ghz)) for count in counts]
    return {
        "calibration": calibration,
        "model": model,
        "ghz": ghz,
        "strategy": name,
        "published": {str(n): value for n, value in SPEEDUPS.get((model, ghz), {}).items()},
        **{measure: [digits(point.speedup(measure)) for point in found] for measure in MEASURES},
    }


def _within(rows: Sequence[Row], calibration: str, measure: str) -> Row:
    off = [
        abs(row[f"{measure}_deviation_percent"])
        for row in rows
        if row["strategy"] == "aofl" and row["calibration"] == calibration
    ]
    return {
        "calibration": calibration,
        "measure": measure,
        "within": sum(percent <= TOLERANCE_PERCENT for percent in off),
        "of": len(off),
        "worst_percent": max(off),
    }
