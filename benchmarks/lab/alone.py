"""Whether one emulated device alone takes what its preset says, network by network.

    sudo .venv/bin/python -m benchmarks.lab.alone [--preset pi4-gbe] [--models NAME,...] [--json]

Twice: the whole network as one program, and unit by unit (`lw` on one device), by the computing
time of its tasks. The exit code is 1 if either is off by more than a tenth.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.lab.bench import Setting, bench
from benchmarks.lab.calibrate import TOLERANCE
from benchmarks.lab.measure import ask, measure
from benchmarks.report import command_line, emit
from coordinator.planning.single_device import computing_s, unsplit_works
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import load_kind

MODELS = ("digits", "mobilenetv2", "resnet18", "resnet50", "yolov8n", "yolov2", "vgg16")
_COMPUTING = ("ideal", "redundant", "slower_kernels")
_REPEAT = 3


def run(preset: str, models: list[str]) -> dict[str, Any]:
    """Seconds in the device's own time by network, and how far they are from the preset's."""
    one = cluster_of(load_kind(preset), 1)
    (device,) = one.devices
    rows: dict[str, Any] = {}
    with bench(Setting(preset, 1), _say) as running:
        for model in models:
            question = ask(running.lab, model)
            network = question.loaded.served.network
            says_s = {
                "whole": device.costs.block_s(unsplit_works(network)),
                # In several programs, each engine computes what it is faster at.
                "by_units": computing_s(network, one.devices)[0],
            }
            result = measure(running.lab, question, ["lw"], _REPEAT, _say)
            by_units = result["strategies"]["lw"]["where_s"]
            rows[model] = {"preset_s": round(says_s["whole"], 4)}
            for name, seconds in (
                ("whole", result["baseline"]["latency_s"]),
                ("by_units", sum(by_units[part] for part in _COMPUTING)),
            ):
                own_s = seconds * running.scale
                rows[model] |= {f"{name}_s": round(own_s, 4)}
                rows[model] |= {f"{name}_error": round(own_s / says_s[name] - 1, 4)}
    return {"preset": Path(preset).stem, "scale": running.scale, "networks": rows}


def _text(result: dict[str, Any]) -> str:
    return "\n".join(
        f"{model}: the preset says {row['preset_s']:.3f} s; whole {row['whole_error']:+.1%}, "
        f"by units {row['by_units_error']:+.1%}"
        for model, row in result["networks"].items()
    )


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main() -> int:
    """The exit code: 1 if a network is off by more than a tenth."""
    parser = command_line(__doc__)
    parser.add_argument("--preset", default="pi4-gbe")
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    arguments = parser.parse_args()
    result = run(arguments.preset, arguments.models)
    emit(result, arguments, _text(result))
    errors = [
        abs(row[key])
        for row in result["networks"].values()
        for key in ("whole_error", "by_units_error")
    ]
    return int(max(errors) > TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
