"""A home of unlike computers: `auto` beside the fastest of them alone, by its fastest engine.

    sudo .venv/bin/python -m benchmarks.lab.mixed [--homes pi5-three-pi4,n100-three-pi4]
                                                  [--models yolov8n,resnet50] [--repeat 5] [--json]

The exit code is 1 if an answer differs, or `auto` is clearly slower than that computer. The lab's
switch has one bandwidth: homes whose computers differ in theirs are for the simulator.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.hardware import EXAMPLES
from benchmarks.lab.bench import CORE_RUNS, fitting_scale
from benchmarks.lab.calibrate import machine
from benchmarks.lab.cluster import lab, wait_until_measured
from benchmarks.lab.measure import ask, chosen, measure
from benchmarks.report import command_line, emit
from benchmarks.speedup import NEVER_SLOWER
from coordinator.measuring.unsplit import SETTLED
from coordinator.serving.common.names import NPZ
from coordinator.settings import CoordinatorSettings
from imbrex.demo.emulation.rate import measured_core
from imbrex.kinds.presets import load_kind
from models.check.check import TOLERANCE
from protos.errors import BadRequest

HOMES = ("pi5-three-pi4", "n100-three-pi4")
STRATEGY = "auto"
# Bandwidths of published measurements, as of one port.
_EQUAL = 0.01


def run(home: str, models: Sequence[str], repeat: int) -> dict[str, Any]:
    """What was measured of each model, in seconds of the lab.

    Raises:
        BadRequest: there is no such home, or its computers have different bandwidths.
    """
    presets = [
        load_kind(kind) for kind, count in EXAMPLES.get(home, {}).items() for _ in range(count)
    ]
    rates = [preset.mbps for preset in presets]
    if not rates or max(rates) > (1 + _EQUAL) * min(rates):
        raise BadRequest(
            cause=f"there is no home {home!r} of which all computers have one bandwidth",
            cure=f"Choose from {', '.join(HOMES)}",
        )
    first, core = presets[0], measured_core(CORE_RUNS)
    scale = fitting_scale(
        first, sum(preset.gflops for preset in presets) / first.gflops, core.gflops
    )
    wanted = [preset.scaled(scale) for preset in presets]
    here = machine(core, wanted[0])
    computers = [here.computer(preset) for preset in wanted]
    # Plans are replaced as at a user's: `auto` measures one device where it gains little.
    replan = CoordinatorSettings.model_fields["replan"].default
    with lab(wanted[0], computers, _say, replan=replan) as running:
        wait_until_measured(running, _say)
        measured = {}
        for model in models:
            question = ask(running, model)
            for _ in range(2 * SETTLED):  # until one device was measured, if `auto` doubts its plan
                running.client.outputs(question.name, question.body, NPZ, chosen(STRATEGY))
            measured[model] = measure(running, question, (STRATEGY,), repeat, _say)
    return {"home": home, "scale": scale, "models": measured}


def is_right(found: dict[str, Any]) -> bool:
    """Whether no answer differs, and none is clearly later than one computer's."""
    results = [model["strategies"][STRATEGY] for model in found["models"].values()]
    return all(
        row["max_rel_error"] <= TOLERANCE and row["speedup"] >= NEVER_SLOWER for row in results
    )


def _lines(found: dict[str, Any]) -> list[str]:
    return [
        f"{found['home']}: {model} {found['scale'] * row['baseline']['latency_s']:.3f} s alone "
        f"({row['baseline']['engine']}), {found['scale'] * result['latency_s']:.3f} s on "
        f"{result['devices_used']}: {result['speedup']:.2f}x"
        for model, row in found["models"].items()
        for result in (row["strategies"][STRATEGY],)
    ]


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main() -> int:
    """The exit code: 1 if it is not right."""
    parser = command_line(__doc__)
    parser.add_argument("--homes", default=",".join(HOMES))
    parser.add_argument("--models", default="yolov8n,resnet50")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    found = [run(home, given.models.split(","), given.repeat) for home in given.homes.split(",")]
    emit({"homes": found}, given, "\n".join(line for row in found for line in _lines(row)))
    return int(not all(map(is_right, found)))


if __name__ == "__main__":
    raise SystemExit(main())
