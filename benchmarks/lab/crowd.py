"""What many clients get together."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.clients import asking
from benchmarks.lab.cluster import Lab, Say
from benchmarks.lab.measure import Question, alone_s
from coordinator.serving.common import names

CLIENTS = 32
# Whole images go to every device, and with them all weights: 100 MB of ResNet-50 to seven Pis take
# a minute of the host's Fast Ethernet.
SETTLE_S = 120.0
BASELINE_RUNS = 10


def crowd(lab: Lab, question: Question, seconds: float, say: Say) -> dict[str, Any]:
    """Answers per second over `seconds`, once the cluster has settled, beside one device's."""
    lab.client.outputs(question.name, question.body, names.NPZ)
    say(f"{CLIENTS} clients for {SETTLE_S + seconds:.0f} s")
    with asking(lab.client, question.name, question.body, question.expected, CLIENTS) as asked:
        time.sleep(SETTLE_S)
        begin_s = time.monotonic()
        time.sleep(seconds)
    if asked.lost:
        raise RuntimeError(f"{len(asked.lost)} requests were lost, as {asked.lost[0]!r}")
    durations = [took for at, took in asked.times if begin_s <= at + took < begin_s + seconds]
    baseline_s = alone_s(lab, question, BASELINE_RUNS)
    rate = len(durations) / seconds
    return {
        "clients": CLIENTS,
        "seconds": seconds,
        "answers": len(durations),
        "baseline_s": round(baseline_s, 4),
        "images_per_s": round(rate, 4),
        "ratio": round(rate * baseline_s, 3),
        "latency_s": round(sorted(durations)[len(durations) // 2], 3) if durations else None,
        "max_rel_error": asked.worst.max_rel_error,
    }
