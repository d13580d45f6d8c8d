"""What calibration (b) may mean, and what every meaning gives: how the adopted one was chosen.

"120 ns per byte of endpoint CPU" may be spent at the device or at both ends; it and the cost of
weights may grow at lower clocks, as computation does, or not; weights of 1x1 convolutions may cost
what others do, or nothing; the first of N devices may be the host's own worker or not. All
thirty-two are tried on the fifteen published speed-ups of AOFL [Figures 10 and 13b]; and the
adopted one with part of calibration (a)'s fixed cost per transfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from benchmarks.compare import Row, digits, percent, table
from benchmarks.fig10_13 import TOLERANCE_PERCENT
from benchmarks.published import RESNET, SPEEDUPS, VGG, YOLO
from benchmarks.testbed import MEASURES, Meaning, Setting, outcome

CALIBRATION = "b"
_EITHER = (True, False)
MEANINGS = tuple(
    Meaning(*combination) for combination in product(_EITHER, (2, 1), _EITHER, _EITHER, _EITHER)
) + tuple(Meaning(message_ms=fixed) for fixed in (10.0, 20.0, 25.0, 77.5))
SHORT = {VGG: "VGG", YOLO: "YOLO", RESNET: "ResNet"}


def meanings(tried: Sequence[Meaning] = MEANINGS) -> dict[str, Any]:
    """A row per meaning: deviations in percent, and how many are within 15."""
    return {
        "calibration": CALIBRATION,
        "adopted": asdict(Meaning()),
        "rows": [_row(meaning) for meaning in tried],
    }


def meanings_text(result: Mapping[str, Any]) -> str:
    """A table for each telling of time, a line per meaning; the adopted one is marked."""
    titles = {"cost": "AOFL's own cost", "simulated": "the event simulator"}
    return "\n\n".join(
        f"Meanings of ({CALIBRATION}): AOFL's speed-ups on 2, 4, 8 devices, % off by "
        f"{titles[measure]}\n{_table(result, measure)}"
        for measure in MEASURES
    )


def _table(result: Mapping[str, Any], measure: str) -> str:
    shown = [
        row
        | {name: " ".join(f"{value:+.0f}" for value in off) for name, off in row[measure].items()}
        | {"adopted": "adopted" if _is_adopted(row, result["adopted"]) else ""}
        for row in result["rows"]
    ]
    columns = {
        "host_computes": "host computes",
        "ends": "CPU at ends",
        "slow_weights": "weights by clock",
        "slow_bytes": "bytes by clock",
        "weights_1x1": "weights of 1x1",
        "message_ms": "ms per transfer",
        f"{measure}_within": "within 15 % of 15",
        **{name: name for name in result["rows"][0][measure]},
        "adopted": "",
    }
    return table(shown, columns)


def _row(meaning: Meaning) -> Row:
    row: Row = asdict(meaning)
    for measure in MEASURES:
        off = {
            f"{SHORT[model]} {ghz:g} GHz": [
                _deviation(model, ghz, count, meaning, measure) for count in published
            ]
            for (model, ghz), published in SPEEDUPS.items()
        }
        every = [value for group in off.values() for value in group]
        row[measure] = off
        row[f"{measure}_within"] = sum(abs(percent) <= TOLERANCE_PERCENT for percent in every)
    return row


def _deviation(model: str, ghz: float, count: int, meaning: Meaning, measure: str) -> float:
    found = outcome(model, "aofl", Setting(CALIBRATION, count, ghz, meaning=meaning))
    off = percent(found.speedup(measure), SPEEDUPS[model, ghz][count])
    assert off is not None
    return digits(off)


def _is_adopted(row: Row, adopted: Mapping[str, Any]) -> bool:
    return all(row[key] == value for key, value in adopted.items())
