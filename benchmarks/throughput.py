"""Images per second with many clients: groups of devices beside one image over all of them.

A closed loop of clients, each of which sends its next image when it has an answer, on local
workers; for every objective a cluster of its own. The yardstick is measured in the same cluster,
before and after the crowd: the best device running the whole model in plain onnxruntime.

    python -m benchmarks.throughput [--model digits] [--workers 8] [--clients 32] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.local import LocalCluster, local_cluster
from benchmarks.report import command_line, emit
from models.catalogue import load
from models.pixels import as_values
from models.reference import WholeModel, compare, random_inputs

OBJECTIVES = ("latency", "auto", "throughput")


async def measure(objective: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One objective: answers per second once its groups have settled, and how right they are."""
    model = arguments.model
    async with local_cluster(
        arguments.workers, strategy="auto", profiles=arguments.profiles, objective=objective
    ) as cluster:
        coordinator = cluster.coordinator
        graph = (await coordinator.served.get(model)).network.graph
        feeds = random_inputs(graph)
        expected = WholeModel(load(model).proto, 1).run(as_values(graph, feeds))
        await coordinator.infer(model, feeds)
        baselines = [(await coordinator.served.baseline(model)).latency_s]
        await _crowd(cluster, model, feeds, arguments.clients, arguments.settle)
        answers, seconds = await _crowd(cluster, model, feeds, arguments.clients, arguments.seconds)
        load_status = next(
            each.load for each in coordinator.served.statuses() if each.name == model
        )
        baselines.append((await coordinator.served.baseline(model)).latency_s)
    latencies = sorted(answer.timing.total_s for answer in answers)
    rate, alone = len(answers) / seconds, 1.0 / statistics.mean(baselines)
    return {
        "objective": objective,
        "groups": load_status.groups,
        "images_per_s": rate,
        "predicted_per_s": load_status.capacity_per_s,
        "one_device_per_s": alone,
        "ratio": rate / alone,
        "p50_s": statistics.median(latencies),
        "p99_s": latencies[int(0.99 * (len(latencies) - 1))],
        "max_rel_error": max(compare(a.outputs, expected).max_rel_error for a in answers),
    }


async def _crowd(
    cluster: LocalCluster, model: str, feeds: dict[str, np.ndarray], clients: int, seconds: float
) -> tuple[list[Any], float]:
    """Answers that came in `seconds`, and how long that really was."""
    answers: list[Any] = []
    begin = time.monotonic()

    async def client() -> None:
        while time.monotonic() - begin < seconds:
            answers.append(await cluster.coordinator.infer(model, feeds))

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers, time.monotonic() - begin


async def every_objective(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One after the other: they share the machine."""
    return [await measure(each, arguments) for each in OBJECTIVES]


def main() -> int:
    """Prints the result."""
    parser = command_line(__doc__)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--settle", type=float, default=10.0, help="before what is counted")
    parser.add_argument("--profiles", type=Path, help="keeps what was measured of the workers")
    arguments = parser.parse_args()
    rows = asyncio.run(every_objective(arguments))
    text = "\n".join(
        f"{row['objective']:10} {row['groups']} groups: {row['images_per_s']:.1f} images/s, "
        f"{row['ratio']:.2f}x one device; p50 {row['p50_s'] * 1e3:.0f} ms, "
        f"p99 {row['p99_s'] * 1e3:.0f} ms; largest error {row['max_rel_error']:.1e}"
        for row in rows
    )
    emit(
        {
            "model": arguments.model,
            "workers": arguments.workers,
            "clients": arguments.clients,
            "objectives": rows,
        },
        arguments,
        text,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
