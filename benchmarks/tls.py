"""What mutual TLS between daemons costs: the same cluster with it and without, side by side.

Two clusters of two workers on loopback, one with an authority, answer the same requests in turn,
divided layer by layer (no strategy sends more), and their connections carry the same payloads in
turn: ratios are of medians over the rounds. CPU is that of this process, where both coordinators
are, and of the workers whose turn it is.

    python -m benchmarks.tls [--json] [--rounds 60]
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchmarks.local import LocalCluster, local_cluster
from benchmarks.messages import cpu_s
from benchmarks.report import command_line, emit
from coordinator.devices.pool import Pool
from models.run.reference import random_inputs

MODEL = "digits"
WORKERS = 2
# A halo, a tile of a home's network, and a whole message of the largest.
PAYLOADS = (4 << 10, 256 << 10, 4 << 20)
PINGS = 5

Action = Callable[[LocalCluster], Awaitable[object]]


async def measure(rounds: int) -> dict[str, Any]:
    """Every action on both clusters in turn, in short turns: what else runs here disturbs both."""
    async with (
        local_cluster(WORKERS, pace=1.0, strategy="lw", profile=False) as plain,
        local_cluster(
            WORKERS,
            pace=1.0,
            strategy="lw",
            profile=False,
            certified=True,
            enrol_host="127.0.0.1",
            enrol_port=0,
        ) as tls,
    ):
        clusters = (plain, tls)
        feeds = random_inputs((await plain.coordinator.library.get(MODEL)).network.graph)

        async def ask(cluster: LocalCluster) -> None:
            await cluster.coordinator.infer(MODEL, feeds)

        found = {f"{MODEL} request": await _compared(clusters, ask, rounds, 1)}
        for size in PAYLOADS:

            async def ping(cluster: LocalCluster, size: int = size) -> None:
                pool: Pool = cluster.coordinator.devices.pool
                await next(iter(pool.ready().values())).ping(size, size)

            found[f"{size} bytes there and back"] = await _compared(clusters, ping, rounds, PINGS)
    return {"workers": WORKERS, "rounds": rounds, "actions": found}


async def _compared(
    clusters: Sequence[LocalCluster], action: Action, rounds: int, times: int
) -> dict[str, float]:
    """Milliseconds per action, elapsed and of CPU, without and with TLS, and their ratios."""
    for cluster in clusters:
        for _ in range(3):
            await action(cluster)
    seen: list[list[tuple[float, float]]] = [[], []]
    for number in range(rounds):
        turn = (0, 1) if number % 2 else (1, 0)
        for which in turn:
            seen[which].append(await _timed(clusters[which], action, times))
    elapsed, cpu = (
        [statistics.median(run[which] for run in of) * 1e3 for of in seen] for which in (0, 1)
    )
    return {
        "plain_ms": round(elapsed[0], 3),
        "tls_ms": round(elapsed[1], 3),
        "elapsed_ratio": round(elapsed[1] / elapsed[0], 3),
        "plain_cpu_ms": round(cpu[0], 3),
        "tls_cpu_ms": round(cpu[1], 3),
        "cpu_ratio": round(cpu[1] / cpu[0], 3),
    }


async def _timed(cluster: LocalCluster, action: Action, times: int) -> tuple[float, float]:
    """Seconds per action: elapsed, and of CPU of all daemons."""
    pids = (os.getpid(), *cluster.pids)
    cpu, began = sum(map(cpu_s, pids)), time.perf_counter()
    for _ in range(times):
        await action(cluster)
    return (time.perf_counter() - began) / times, (sum(map(cpu_s, pids)) - cpu) / times


def main() -> int:
    """Prints the result."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.rounds))
    lines = (
        f"{name}: {action['tls_ms']} ms with TLS, {action['plain_ms']} without "
        f"({action['elapsed_ratio']:.2f}); CPU {action['cpu_ratio']:.2f}"
        for name, action in found["actions"].items()
    )
    emit(found, arguments, "\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
