"""AOFL, Figure 9: seconds of LW, EFL and OFL on 1 to 8 devices, and what section 5.3 says of them.

Both calibrations, and both tellings of time: AOFL's own cost and the event simulator's
[benchmarks/testbed.py].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.compare import Row, digits, percent, signed, span, table
from benchmarks.published import (
    EFL_SAVES_PERCENT_OF_LW_AT_750_MHZ,
    LW_BEST_AT_ON_VGG,
    OFL_OVER_EFL,
    OFL_SAVES_PERCENT_OF_EFL_AT_750_MHZ,
    SECONDS,
    VGG,
    YOLO,
)
from benchmarks.testbed import CALIBRATIONS, MEASURES, Setting, outcome

STRATEGIES = ("lw", "efl", "ofl")
MODELS = (VGG, YOLO)
CLOCKS = (1.0, 0.75, 0.5)
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8)


def fig9(counts: Sequence[int] = COUNTS) -> dict[str, Any]:
    """A row per calibration, network, clock and strategy; published are one device, and eight."""
    rows = [
        _row(calibration, model, ghz, name, (1,) if name == "single" else counts)
        for calibration in CALIBRATIONS
        for model in MODELS
        for ghz in CLOCKS
        for name in ("single", *STRATEGIES)
    ]
    claims = [
        claim
        for calibration in CALIBRATIONS
        for measure in MEASURES
        for claim in _Claims(calibration, measure, [n for n in counts if n % 2 == 0]).all()
    ]
    return {"devices": list(counts), "rows": rows, "claims": claims}


def fig9_text(result: Mapping[str, Any]) -> str:
    """Times by number of devices, then the claims."""
    shown = [
        row
        | {
            "cost": " ".join(f"{value:5.1f}" for value in row["cost_s"]),
            "simulated": " ".join(f"{value:5.1f}" for value in row["simulated_s"]),
            "off": signed(row["cost_deviation_percent"]),
            "simulated_off": signed(row["simulated_deviation_percent"]),
        }
        for row in result["rows"]
    ]
    columns = {
        "calibration": "",
        "model": "network",
        "ghz": "GHz",
        "strategy": "",
        "cost": "AOFL's cost, s",
        "simulated": "simulated, s",
        "published_last_s": "published (last)",
        "off": "cost off",
        "simulated_off": "simulated off",
    }
    claimed = {
        "claim": "section 5.3",
        "calibration": "",
        "measure": "by",
        "ours": "ours",
        "published": "published",
    }
    devices = ", ".join(str(count) for count in result["devices"])
    return "\n".join(
        [
            f"AOFL, Figure 9: seconds on {devices} devices",
            table(shown, columns),
            "",
            table(result["claims"], claimed),
        ]
    )


def _row(calibration: str, model: str, ghz: float, name: str, counts: Sequence[int]) -> Row:
    found = [outcome(model, name, Setting(calibration, count, ghz)) for count in counts]
    published = SECONDS.get((model, ghz, name, counts[-1]))
    return {
        "calibration": calibration,
        "model": model,
        "ghz": ghz,
        "strategy": name,
        "cost_s": [digits(point.cost_s) for point in found],
        "simulated_s": [digits(point.simulated_s) for point in found],
        "published_last_s": published,
        "cost_deviation_percent": percent(found[-1].cost_s, published),
        "simulated_deviation_percent": percent(found[-1].simulated_s, published),
    }


@dataclass(frozen=True, slots=True)
class _Claims:
    """Section 5.3 on the even counts: 3, 5 and 7 devices divide a map only into thin strips."""

    calibration: str
    measure: str
    counts: Sequence[int]

    def all(self) -> list[Row]:
        """Every claim, ours as a range over networks and counts."""
        best = [self._best(ghz) for ghz in CLOCKS]
        return [
            self._claim("OFL faster than EFL, times", self._ratios("efl", "ofl"), OFL_OVER_EFL),
            self._claim(
                "EFL saves of LW at 750 MHz, %",
                [100 * (1 - 1 / ratio) for ratio in self._ratios("lw", "efl", (0.75,))],
                EFL_SAVES_PERCENT_OF_LW_AT_750_MHZ,
            ),
            self._claim(
                "OFL saves of EFL at 750 MHz, %",
                [100 * (1 - 1 / ratio) for ratio in self._ratios("efl", "ofl", (0.75,))],
                OFL_SAVES_PERCENT_OF_EFL_AT_750_MHZ,
            ),
            self._named("devices at which LW is best, VGG-16")
            | {"ours": best, "published": [LW_BEST_AT_ON_VGG] * len(CLOCKS)},
        ]

    def _named(self, name: str) -> Row:
        return {"claim": name, "calibration": self.calibration, "measure": self.measure}

    def _claim(self, name: str, values: Sequence[float], published: tuple[float, float]) -> Row:
        return self._named(name) | {"ours": list(span(values)), "published": list(published)}

    def _seconds(self, model: str, ghz: float, name: str, count: int) -> float:
        return outcome(model, name, Setting(self.calibration, count, ghz)).seconds(self.measure)

    def _ratios(self, slow: str, fast: str, clocks: Sequence[float] = CLOCKS) -> list[float]:
        return [
            self._seconds(model, ghz, slow, count) / self._seconds(model, ghz, fast, count)
            for model in MODELS
            for ghz in clocks
            for count in self.counts
        ]

    def _best(self, ghz: float) -> int:
        return min(self.counts, key=lambda count: self._seconds(VGG, ghz, "lw", count))
