"""A cheap switch, whose ports hold back 64 KB, and eight devices that send at the same time.

    sudo .venv/bin/python -m benchmarks.lab.shallow [--queue-kb 64] [--devices 8]
                                                    [--model yolov8n] [--requests 200] [--json]

The exit code is 1 if a request is lost, an answer differs, or one of a hundred takes more than
twice the median.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

from benchmarks.clients import asking
from benchmarks.lab.bench import Setting, bench
from benchmarks.lab.measure import ask
from benchmarks.report import command_line, emit
from coordinator.serving.common import names
from models.check.check import TOLERANCE

# Of the median.
MOST_P99 = 2.0
# Requests that show what messages and tasks cost.
_WARM_UP = 10


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds in the devices' own time, packets that ports dropped, and requests that were lost."""
    queue_bytes = arguments.queue_kb << 10
    setting = Setting(arguments.preset, arguments.devices, queue_bytes=queue_bytes)
    with bench(setting, _say) as running:
        question = ask(running.lab, arguments.model)
        client, before = running.lab.client, running.lab.network.dropped()
        client.outputs(question.name, question.body, names.NPZ)
        with asking(client, question.name, question.body, question.expected, 1) as asked:
            while len(asked.times) + len(asked.lost) < _WARM_UP + arguments.requests:
                time.sleep(1.0)
        dropped = running.lab.network.dropped() - before
    seconds = [took_s * running.scale for _, took_s in asked.times[_WARM_UP:]]
    median_s = statistics.median(seconds)
    p99_s = statistics.quantiles(seconds, n=100, method="inclusive")[98]
    return {
        "preset": arguments.preset,
        "devices": arguments.devices,
        "model": question.name,
        "queue_bytes": queue_bytes,
        "requests": len(seconds),
        "lost": len(asked.lost),
        "packets_dropped": dropped,
        "median_s": round(median_s, 4),
        "p99_s": round(p99_s, 4),
        "p99_ratio": round(p99_s / median_s, 3),
        "max_rel_error": asked.worst.max_rel_error,
    }


def is_right(result: dict[str, Any]) -> bool:
    """Whether nothing was lost, no answer differs, and none is far slower than others."""
    return bool(
        not result["lost"]
        and result["max_rel_error"] <= TOLERANCE
        and result["p99_ratio"] <= MOST_P99
    )


def _text(result: dict[str, Any]) -> str:
    return (
        f"{result['model']} on {result['devices']} x {result['preset']}, "
        f"{result['queue_bytes'] >> 10} KB per port: {result['packets_dropped']} packets dropped, "
        f"{result['lost']} requests lost; median of {result['requests']}: "
        f"{result['median_s']:.3f} s, p99 {result['p99_ratio']:.2f} times that"
    )


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main() -> int:
    """The exit code: 1 if it is not right."""
    parser = command_line(__doc__)
    parser.add_argument("--preset", default="pi4-gbe")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--queue-kb", type=int, default=64)
    parser.add_argument("--model", default="yolov8n")
    parser.add_argument("--requests", type=int, default=200)
    arguments = parser.parse_args()
    result = run(arguments)
    emit(result, arguments, _text(result))
    return int(not is_right(result))


if __name__ == "__main__":
    raise SystemExit(main())
