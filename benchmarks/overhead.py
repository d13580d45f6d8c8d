"""What the coordinator's own work costs: its CPU per request, less that of an echo.

Fifty warm requests of vgg16-conv run on four local workers; then the same payload bytes, in as
many messages, go to the same workers and come back as pings. Both in one process and one run: the
difference is what scheduling, encoding, merging and HTTP-free serving add to moving the bytes.

    python -m benchmarks.overhead [--json] [--requests 50]
"""

from __future__ import annotations

import asyncio
import resource
import statistics
from typing import Any

from benchmarks.local import LocalCluster, local_cluster
from benchmarks.report import command_line, emit
from coordinator.devices.pool import Pool
from models.run.reference import random_inputs

MODEL = "vgg16-conv"
WORKERS = 4
TARGET_MS = 15.0


async def measure(requests: int) -> dict[str, Any]:
    """CPU milliseconds per request and per echo, interleaved in five rounds each."""
    async with local_cluster(WORKERS) as cluster:
        coordinator = cluster.coordinator
        served = await coordinator.library.get(MODEL)
        feeds = random_inputs(served.network.graph)
        plan, _ = await coordinator.plans.current(MODEL)
        for _ in range(3):
            answer = await coordinator.infer(MODEL, feeds)
        request_s, echo_s, rounds = [], [], 5
        for _ in range(rounds):
            before = _cpu_s()
            for _ in range(requests // rounds):
                answer = await coordinator.infer(MODEL, feeds)
            request_s.append((_cpu_s() - before) / (requests // rounds))
            before = _cpu_s()
            for _ in range(requests // rounds):
                await _echo(cluster, plan_messages(plan), answer.traffic)
            echo_s.append((_cpu_s() - before) / (requests // rounds))
    request_ms, echo_ms = (statistics.median(side_s) * 1e3 for side_s in (request_s, echo_s))
    return {
        "model": MODEL,
        "workers": WORKERS,
        "requests": requests,
        "strategy": plan.strategy,
        "messages_each_way": plan_messages(plan),
        "scatter_bytes": answer.traffic.scatter,
        "gather_bytes": answer.traffic.gather,
        "request_cpu_ms": round(request_ms, 2),
        "echo_cpu_ms": round(echo_ms, 2),
        "overhead_cpu_ms": round(request_ms - echo_ms, 2),
        "target_ms": TARGET_MS,
        "ok": request_ms - echo_ms <= TARGET_MS,
    }


def plan_messages(plan: Any) -> int:
    """Tasks of a plan: one message there and one back for each."""
    return sum(len(block.tiles) for block in plan.blocks)


async def _echo(cluster: LocalCluster, messages: int, traffic: Any) -> None:
    """The same bytes in as many messages, without any of our work around them."""
    pool: Pool = cluster.coordinator.devices.pool
    connections = list(pool.ready().values())
    there, back = traffic.scatter // messages, traffic.gather // messages
    for start in range(0, messages, len(connections)):
        batch = connections[: min(len(connections), messages - start)]
        await asyncio.gather(*(connection.ping(there, back) for connection in batch))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Prints the result; fails if the target is missed."""
    parser = command_line(__doc__)
    parser.add_argument("--requests", type=int, default=50)
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments.requests))
    text = (
        f"{MODEL} on {WORKERS} workers: {result['request_cpu_ms']} ms CPU per request, "
        f"{result['echo_cpu_ms']} ms per echo of the same bytes: "
        f"{result['overhead_cpu_ms']} ms of our own (target {TARGET_MS:g} ms)"
    )
    emit(result, arguments, text)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
