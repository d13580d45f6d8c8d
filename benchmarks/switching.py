"""What it costs to change a plan: the seconds that preparing takes, and what requests feel of it.

    python -m benchmarks.switching [--engines onnxruntime,ncnn] [--json] [-o FILE]

Workers with each engine by turns; one request after the other by the plan in force, while another
strategy's plan is prepared that shares no program with it, then made again when everything is
prepared. A plan takes over when onnxruntime can compute it: ncnn verifies its programs afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from typing import Any

import numpy as np

from benchmarks.local import local_cluster
from benchmarks.report import command_line, emit
from coordinator.answers import PlanChoice
from coordinator.service import Coordinator
from models.catalogue.catalogue import load
from models.onnx_file.importer import load_graph
from models.run.reference import random_inputs

MODELS = ("vgg16-conv", "yolov8n", "resnet50")
WORKERS = 4
ENGINES = ("onnxruntime", "ncnn")
FROM, TO = "ofl", "lw"
REQUESTS = 5


async def case(coordinator: Coordinator, model: str) -> dict[str, Any]:
    """One model: alone, while a plan is prepared, and with nothing left to prepare."""
    feeds = random_inputs(load_graph(load(model).proto))
    old, new = PlanChoice(FROM), PlanChoice(TO)
    await coordinator.infer(model, feeds, choice=old)
    alone = [await _request(coordinator, model, feeds, old) for _ in range(REQUESTS)]
    planned = asyncio.create_task(_seconds(coordinator, model, new))
    meanwhile = []
    while not planned.done():
        meanwhile.append(await _request(coordinator, model, feeds, old))
    again_s = await _seconds(coordinator, model, new)
    return {
        "model": model,
        "preparing_s": await planned,
        "again_s": again_s,
        "alone_s": statistics.median(alone),
        "meanwhile_s": statistics.median(meanwhile),
        "worst_meanwhile_s": max(meanwhile),
        "slowdown": statistics.median(meanwhile) / statistics.median(alone),
    }


async def _request(
    coordinator: Coordinator, model: str, feeds: dict[str, np.ndarray], choice: PlanChoice
) -> float:
    began = time.monotonic()
    await coordinator.infer(model, feeds, choice=choice)
    return time.monotonic() - began


async def _seconds(coordinator: Coordinator, model: str, choice: PlanChoice) -> float:
    """Until a plan is made, and prepared on every device."""
    began = time.monotonic()
    await coordinator.plans.current(model, choice)
    return time.monotonic() - began


async def measure(models: list[str], engines: list[str], repeat: int) -> list[dict[str, Any]]:
    """Every model with every engine, so many times by turns, on new workers each time."""
    results = []
    for model, _, engine in itertools.product(models, range(repeat), engines):
        async with local_cluster(WORKERS, pace=1.0, profile=False, engine=engine) as cluster:
            results.append({"engine": engine, **await case(cluster.coordinator, model)})
    return results


def main() -> int:
    """Prints the result."""
    parser = command_line(__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--repeat", type=int, default=3)
    chosen = parser.parse_args()
    results = asyncio.run(
        measure(chosen.models.split(","), chosen.engines.split(","), chosen.repeat)
    )
    lines = [
        f"{result['model']:14} {result['engine']:11} prepared in {result['preparing_s']:5.2f} s, "
        f"again {result['again_s']:5.3f} s; requests meanwhile x{result['slowdown']:.2f}"
        for result in results
    ]
    emit({"workers": WORKERS, "cases": results}, chosen, "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
