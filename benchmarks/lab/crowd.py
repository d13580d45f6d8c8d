"""A closed loop of clients: each sends its next question when it has its answer."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.lab.cluster import Lab, Say
from benchmarks.lab.measure import Question, alone_s
from coordinator.serving.common import names
from models.reference import EQUAL, compare

CLIENTS = 32
# Whole images go to every device, and with them all weights: 100 MB of ResNet-50 to seven Pis take
# a minute of the host's Fast Ethernet.
SETTLE_S = 120.0
# Kernels of the lab take the least time that they have taken, and those of the crowd run a hundred
# times.
BASELINE_RUNS = 10


def crowd(lab: Lab, question: Question, seconds: float, say: Say) -> dict[str, Any]:
    """Answers per second over `seconds`, once the cluster has settled, beside one device's."""
    lab.client.outputs(question.name, question.body, names.NPZ)
    begin_s = time.monotonic() + SETTLE_S
    end_s = begin_s + seconds
    counted: list[float] = []
    worst, guard = EQUAL, threading.Lock()

    def ask_again() -> None:
        nonlocal worst
        while (asked_s := time.monotonic()) < end_s:
            answer = lab.client.outputs(question.name, question.body, names.NPZ)
            now_s = time.monotonic()
            found = compare(answer.arrays, question.expected)
            with guard:
                worst = worst.worse(found)
                if begin_s <= now_s < end_s:
                    counted.append(now_s - asked_s)

    say(f"{CLIENTS} clients for {SETTLE_S + seconds:.0f} s")
    with ThreadPoolExecutor(CLIENTS, "client") as clients:
        for client in [clients.submit(ask_again) for _ in range(CLIENTS)]:
            client.result()
    baseline_s = alone_s(lab, question, BASELINE_RUNS)
    rate = len(counted) / seconds
    return {
        "clients": CLIENTS,
        "seconds": seconds,
        "answers": len(counted),
        "baseline_s": round(baseline_s, 4),
        "images_per_s": round(rate, 4),
        "ratio": round(rate * baseline_s, 3),
        "latency_s": round(sorted(counted)[len(counted) // 2], 3) if counted else None,
        "max_rel_error": worst.max_rel_error,
    }
