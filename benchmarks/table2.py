"""AOFL, Table 2 and Figure 12: VGG-16 on unlike devices, against equal tiles on all eight.

The host only sends and merges ("sends the entire input to such a device", case 1-2), the eight
devices are workers. The paper's planner does two things that are told apart here:

* `selection`: devices are added in order of clock, all tiles equal, and the best count is kept
  [Algorithm 2 without Eq. 6];
* `aofl`: every block may use another count, and tiles are unequal so that they finish together
  [Eq. 6, solved exactly]. This can give a slow device a tile so small that it is worth its
  transfer, where an equal one isn't.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.compare import Row, digits, table
from benchmarks.published import CASES, VGG, Case
from benchmarks.testbed import CALIBRATIONS, Outcome, planned, unlike
from coordinator.costs.cluster import Cluster
from coordinator.tasks.plan import Plan

EXPLANATIONS = {
    "1-1": "With equal tiles the two fastest alone are best, as published: any 400 MHz device "
    "would hold up the others. They save less than was published. Tiles by Eq. 6 save as much, by "
    "giving the slow six a few rows of the first block; the two keep over half of the work, and "
    "the last block, to themselves.",
    "1-2": "Four cores at 1 GHz are ten times one at 400 MHz: no tile is worth its transfer.",
    "2-1": "Selection and AOFL both leave out the two at 400 MHz, as published. Selection alone "
    "saves what was published; tiles by Eq. 6 save more, as ours are exact.",
    "2-2": "AOFL uses all eight, the slowest with the smallest tiles, as published. With equal "
    "tiles six are better, because the two at 600 MHz would hold up the others.",
}


def table2(cases: Sequence[Case] = CASES) -> dict[str, Any]:
    """A row per calibration and case, and why ours deviates."""
    rows = [_row(calibration, case) for calibration in CALIBRATIONS for case in cases]
    return {
        "model": VGG,
        "rows": rows,
        "explanations": {case.name: EXPLANATIONS[case.name] for case in cases},
    }


def table2_text(result: Mapping[str, Any]) -> str:
    """A line per calibration and case, then the explanations."""
    columns = {
        "calibration": "",
        "case": "case",
        "devices": "devices, GHz",
        "published_devices": "used, published",
        "selection_devices": "selected",
        "aofl_devices": "AOFL",
        "fast_share": "their share",
        "equal_s": "equal, s",
        "selection_saves_percent": "selected saves %",
        "aofl_saves_percent": "AOFL saves %",
        "published_saves_percent": "published",
        "simulated_aofl_saves_percent": "AOFL simulated",
    }
    lines = [f"{name}: {explanation}" for name, explanation in result["explanations"].items()]
    title = "AOFL, Table 2 and Figure 12: VGG-16 on unlike devices (times by AOFL's cost)"
    return "\n".join([title, table(result["rows"], columns), "", *lines])


def _row(calibration: str, case: Case) -> Row:
    cluster = unlike(calibration, case.ghz, case.cores)
    equal, ours = planned(VGG, "ofl", cluster), planned(VGG, "aofl", cluster)
    count, selected = _select(cluster)
    shares = _flop_shares(ours.plan)
    fast = [device.id for device in cluster.devices[: case.devices]]
    return {
        "calibration": calibration,
        "case": case.name,
        "devices": _devices(case),
        "published_devices": case.devices,
        "selection_devices": count,
        "selection_as_published": count == case.devices,
        "aofl_devices": len(ours.plan.devices),
        "aofl_as_published": set(ours.plan.devices) == set(fast),
        "aofl_blocks": [len(block.tiles) for block in ours.plan.blocks],
        "flop_shares": {str(name): digits(share) for name, share in shares.items()},
        "fast_share": digits(sum(shares.get(name, 0.0) for name in fast)),
        "equal_s": digits(equal.cost_s),
        "selection_s": digits(selected.cost_s),
        "aofl_s": digits(ours.cost_s),
        "selection_saves_percent": _saved(selected.cost_s, equal.cost_s),
        "aofl_saves_percent": _saved(ours.cost_s, equal.cost_s),
        "simulated_aofl_saves_percent": _saved(ours.simulated_s, equal.simulated_s),
        "published_saves_percent": case.saved_percent,
    }


def _select(cluster: Cluster) -> tuple[int, Outcome]:
    """The best number of devices if tiles are equal, and what it takes; the fewest of equals."""
    found = [
        planned(VGG, "ofl", replace(cluster, devices=cluster.devices[:count]))
        for count in range(1, len(cluster.devices) + 1)
    ]
    best = min(found, key=lambda row: row.cost_s)
    return len(best.plan.devices), best


def _flop_shares(plan: Plan) -> dict[str, float]:
    """Every device's part of all FLOPs that are computed, halos included."""
    flop = dict.fromkeys(plan.devices, 0)
    for block in plan.blocks:
        for tile in block.tiles:
            flop[tile.device] += tile.flop
    return {name: own_flop / sum(flop.values()) for name, own_flop in flop.items()}


def _saved(ours_s: float, equal_s: float) -> float:
    return digits(100 * (1 - ours_s / equal_s))


def _devices(case: Case) -> str:
    clocks = dict.fromkeys(case.ghz)
    several = {case.ghz[k]: f" (one of {n} cores)" for k, n in case.cores.items()}
    return ", ".join(f"{case.ghz.count(ghz)} x {ghz:g}{several.get(ghz, '')}" for ghz in clocks)
