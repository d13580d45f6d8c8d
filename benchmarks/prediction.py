"""Predicted against measured latency on local workers.

For 2 and 4 workers, together at most 1.6 cores, every model runs under every strategy: ten
requests correct the costs, then the plan is predicted again by the simulator and compared with
the median of further requests. Real workers, real gRPC, one run. It means something only on an
idle machine, so the load average is told.

    python -m benchmarks.prediction [--json] [--models a,b] [--strategies a,b] [-o FILE]
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.local import LocalCluster, local_cluster
from benchmarks.report import command_line, emit
from coordinator.library.loaded import Loaded
from coordinator.planning.planners.propose import propose
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.named import strategy
from coordinator.tasks.task_graph import TaskGraph, compile_plan
from models.run.quantised_inputs import as_they_travel
from models.run.reference import random_inputs
from protos.errors import Infeasible

MODELS = ("vgg16-conv", "resnet50", "yolov2", "digits")
STRATEGIES = ("lw", "efl", "aofl", "elimination", "kcut", "halo", "auto")
WORKERS = (2, 4)
CORRECTING, MEASURED = 10, 7
TARGET = 0.10


class Bench:
    """Runs plans of any strategy on one cluster, beside the coordinator's own."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._coordinator = cluster.coordinator
        self._devices = cluster.coordinator.devices
        self._version = 1000

    async def case(self, model: str, name: str) -> dict[str, Any]:
        """One model under one strategy."""
        loaded = await self._coordinator.library.load(model)
        taken = loaded.served.network.graph
        feeds = as_they_travel(taken, random_inputs(taken))
        try:
            graph = await self._prepared(loaded, name)
        except Infeasible as error:
            return {"model": model, "strategy": name, "infeasible": error.cause}
        first = graph.plan.predicted_latency_s
        for _ in range(CORRECTING):
            await self._request(loaded, graph, feeds)
        predicted = simulate(graph.plan, loaded.served.network, self._devices.cluster())
        seconds = [await self._request(loaded, graph, feeds) for _ in range(MEASURED)]
        measured = statistics.median(seconds)
        return {
            "model": model,
            "strategy": name,
            "predicted_s": predicted.latency_s,
            "predicted_before_corrections_s": first,
            "measured_s": measured,
            "samples_s": seconds,
            "error": predicted.latency_s / measured - 1.0,
        }

    async def _prepared(self, loaded: Loaded, name: str) -> TaskGraph:
        network, cluster = loaded.served.network, self._devices.cluster()
        plan = await asyncio.to_thread(propose, strategy(name), network, cluster)
        self._version += 1
        plan = replace(plan, version=self._version)
        graph = await asyncio.to_thread(compile_plan, plan, network, loaded.blobs())
        for device in plan.devices:
            connection = self._devices.pool.connection(device)
            await connection.ensure(graph.programs_of(device), graph.blobs)
        return graph

    async def _request(
        self, loaded: Loaded, graph: TaskGraph, feeds: dict[str, np.ndarray]
    ) -> float:
        began = time.monotonic()
        requests = self._coordinator.requests
        computed = await requests.run(graph, feeds)
        seconds = time.monotonic() - began
        requests.release(computed.request, computed.state.holders)
        self._coordinator.measuring.observe(graph, computed.state.timeline.tasks)
        return seconds


async def measure(models: list[str], strategies: list[str]) -> list[dict[str, Any]]:
    """Every case on every number of workers."""
    results = []
    for workers in WORKERS:
        async with local_cluster(workers) as cluster:
            bench = Bench(cluster)
            for model in models:
                for name in strategies:
                    case = await bench.case(model, name)
                    results.append({"workers": workers, **case})
    return results


def _by_strategy(cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Per strategy the median of |error| and the median error."""
    errors: dict[str, list[float]] = {}
    for case in cases:
        if "error" in case:
            errors.setdefault(case["strategy"], []).append(case["error"])
    return {
        name: {
            "median_error": statistics.median(map(abs, found)),
            "bias": statistics.median(found),
        }
        for name, found in errors.items()
    }


def main() -> int:
    """Prints the result; fails if the median error is above the target."""
    parser = command_line(__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    arguments = parser.parse_args()
    cases = asyncio.run(measure(arguments.models.split(","), arguments.strategies.split(",")))
    errors = [abs(case["error"]) for case in cases if "error" in case]
    median = statistics.median(errors)
    by_strategy = _by_strategy(cases)
    result = {
        "cases": cases,
        "median_error": median,
        "by_strategy": by_strategy,
        "load_average": os.getloadavg()[0],
        "target": TARGET,
        "ok": median <= TARGET,
    }
    lines = [
        f"{case['workers']} workers {case['model']:12} {case['strategy']:12} "
        + (
            f"predicted {case['predicted_s'] * 1e3:8.1f} ms, measured "
            f"{case['measured_s'] * 1e3:8.1f} ms, {case['error']:+.1%}"
            if "error" in case
            else f"not possible: {case['infeasible']}"
        )
        for case in cases
    ]
    lines += [
        f"{name:12} median absolute error {of['median_error']:.1%}, bias {of['bias']:+.1%}"
        for name, of in by_strategy.items()
    ]
    lines.append(
        f"median absolute error {median:.1%} (target {TARGET:.0%}), at a load average of "
        f"{result['load_average']:.1f} on {os.cpu_count()} cores"
    )
    emit(result, arguments, "\n".join(lines))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
