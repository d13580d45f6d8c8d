"""Resident memory of workers after real requests: a Pi with 1 GB must do.

    python -m benchmarks.memory [--json]

One worker serves `digits` whole, four serve tiles of `vgg16-conv`; each figure is the largest
resident set among the workers after ten requests.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psutil

from benchmarks.local import local_cluster
from benchmarks.report import command_line, emit
from models.run.reference import random_inputs

# Model, workers, and the most megabytes (1e6 bytes) that one of them may keep.
CASES = (("digits", 1, 250.0), ("digits", 4, 250.0), ("vgg16-conv", 4, 400.0))


async def measure(model: str, workers: int, target_mb: float) -> dict[str, Any]:
    """The largest resident set after ten requests, profiling included."""
    async with local_cluster(workers) as cluster:
        served = await cluster.coordinator.library.get(model)
        feeds = random_inputs(served.network.graph)
        for _ in range(10):
            await cluster.coordinator.infer(model, feeds)
        resident = [psutil.Process(pid).memory_info().rss / 1e6 for pid in cluster.pids]
    return {
        "model": model,
        "workers": workers,
        "resident_mb": [round(megabytes, 1) for megabytes in resident],
        "target_mb": target_mb,
        "ok": max(resident) <= target_mb,
    }


async def _all() -> list[dict[str, Any]]:
    return [await measure(*case) for case in CASES]


def main() -> int:
    """Prints the results; fails if a target is missed."""
    parser = command_line(__doc__)
    arguments = parser.parse_args()
    cases = asyncio.run(_all())
    lines = [
        f"{case['model']} on {case['workers']}: at most {max(case['resident_mb'])} MB resident "
        f"(target {case['target_mb']:g} MB)"
        for case in cases
    ]
    emit({"cases": cases}, arguments, "\n".join(lines))
    return 0 if all(case["ok"] for case in cases) else 1


if __name__ == "__main__":
    raise SystemExit(main())
