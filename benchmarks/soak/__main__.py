"""Does anything grow?

    python -m benchmarks.soak --minutes 30 --json
    python -m benchmarks.soak --model vgg16 --replan --json

Worker processes, and a coordinator that is a process too, asked over HTTP: under a steady load, or
(`--replan`) while the plan changes again and again.
"""

from __future__ import annotations

import asyncio
import sys

from benchmarks.report import command_line, emit
from benchmarks.soak import replanning, steady
from benchmarks.soak.question import questions

# Small weights and pictures; and weights that show when they are kept.
MODELS = ("digits", "resnet50")
# Whoever has something else to do beside it takes a small one: all workers together use so many
# times this of a core.
PACE = 0.2
# The largest growth that is called none: allocators and page tables breathe by about this much.
MOST_GROWTH = 0.05


def main() -> int:
    """Prints the result; fails if a process grew, or an answer was lost or wrong."""
    parser = command_line(__doc__)
    parser.add_argument("--model", action="append", help="what is asked, by default a mix")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=PACE, help="of each worker")
    parser.add_argument("--replan", action="store_true", help="change the plan, 20 times")
    chosen = parser.parse_args()
    mix = [one for model in chosen.model or MODELS for one in questions(model)]
    if chosen.replan:
        result = asyncio.run(replanning.measure(mix[-1], chosen.pace))
        emit(result, chosen, "\n".join(replanning.lines(result)))
        return int(replanning.is_bad(result))
    result = asyncio.run(steady.measure(mix, chosen.minutes, chosen.seed, chosen.pace))
    emit(result, chosen, "\n".join(steady.lines(result)))
    grew = result["worst_growth"] >= MOST_GROWTH
    return int(bool(result["errors"] or result["wrong"] or grew))


if __name__ == "__main__":
    sys.exit(main())
