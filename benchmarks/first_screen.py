"""What a newcomer's first command says, ten times: `make demo`, four times beside a busy core.

    python -m benchmarks.first_screen [--runs 10] [--beside 4] [--like pi4] [--json]

Each run is a demo of its own with everything that belongs to it. The exit code is 1 if a gain is
below 1.4, the gains spread by more than 15 % of their median, a prediction is off by more than 15 %
of what was measured, or an answer differs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

from benchmarks.busy import busy_core
from benchmarks.report import command_line, emit

LEAST_GAIN = 1.4
MOST_SPREAD = 0.15
MOST_ERROR = 0.15


def main() -> int:
    """The exit code."""
    arguments = _arguments()
    runs = []
    for number in range(arguments.runs):
        # Every second one, until there were enough: the machine's own state comes and goes.
        beside = number % 2 == 1 and number // 2 < arguments.beside
        runs.append(_run(arguments.like, beside=beside))
        print(_line(runs[-1]), file=sys.stderr, flush=True)
    result = summary(runs)
    emit(result, arguments, _text(result))
    return 1 if result["missed"] else 0


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """All runs, and which targets they miss."""
    gains = [run["gain"] for run in runs]
    spread = (max(gains) - min(gains)) / statistics.median(gains)
    error = max(abs(run["predicted_s"] / run["measured_s"] - 1) for run in runs)
    missed = {
        "gain": min(gains) < LEAST_GAIN,
        "spread": spread > MOST_SPREAD,
        "prediction": error > MOST_ERROR,
        "answer": not all(run["same"] for run in runs),
    }
    return {
        "gain": statistics.median(gains),
        "least_gain": min(gains),
        "spread": round(spread, 3),
        "largest_error": round(error, 3),
        "missed": [name for name, is_missed in missed.items() if is_missed],
        "runs": runs,
    }


def _run(like: str, *, beside: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "imbrex", "demo", "--like", like, "--json"]
    with busy_core(beside):
        ended = subprocess.run(command, capture_output=True, check=False)
    told = json.loads(ended.stdout or "{}")
    if "speedup" not in told:
        raise SystemExit(ended.stderr.decode())
    return {
        "beside_a_busy_core": beside,
        "gain": told["speedup"],
        "alone_s": told["single_device_latency_s"],
        "measured_s": told["latency_s"],
        "predicted_s": told["predicted_latency_s"],
        "same": ended.returncode == 0,
    }


def _line(run: dict[str, Any]) -> str:
    return (
        f"{run['gain']:.2f}x: alone {run['alone_s'] * 1e3:.0f} ms, together "
        f"{run['measured_s'] * 1e3:.1f} ms, predicted {run['predicted_s'] * 1e3:.1f} ms"
        f"{', beside a busy core' if run['beside_a_busy_core'] else ''}"
        f"{'' if run['same'] else ', A DIFFERENT ANSWER'}"
    )


def _text(result: dict[str, Any]) -> str:
    missed = ", ".join(result["missed"])
    return (
        f"{len(result['runs'])} runs: {result['gain']:.2f}x (least {result['least_gain']:.2f}, "
        f"spread {result['spread']:.0%}), predictions at most {result['largest_error']:.0%} off; "
        + (f"missed: {missed}" if missed else "every target is met")
    )


def _arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--beside", type=int, default=4, help="how many of them beside a busy core")
    parser.add_argument("--like", default="pi4", help="as the demo's")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
