"""Brings up the lab, says what it emulates, and sends one image through.

python -m benchmarks.lab [--preset pi3-1ghz] [--devices 8] [--medium star] [--scale 2]
                         [--model vgg16-256-conv] [--strategy halo] [--keep] [--json]
"""

from __future__ import annotations

import argparse
import sys
import threading
from typing import Any

from benchmarks.lab.calibrate import emulated, machine
from benchmarks.lab.cluster import Lab, lab, wait_until_measured
from benchmarks.lab.network import MOST_DEVICES, require_tools
from benchmarks.lab.presets import fitting_scale, load_kind, names
from benchmarks.report import emit
from coordinator.choice import Choice
from coordinator.commands.rounds import Case, Rounds
from coordinator.serving.tensors import write_tensors
from models import catalogue
from models.graph import load_graph
from models.reference import WholeModel, random_inputs
from protos.errors import ImbrexError

_REPEAT = 3


def main() -> int:
    """The exit code: 1 if the lab emulates something else than it should, or an answer differs."""
    arguments = _arguments()
    try:
        result = run(arguments)
    except ImbrexError as error:
        print(f"error: {error.cause}\ncure:  {error.cure}", file=sys.stderr)
        return 1
    emit(result, arguments.json, "\n".join(_lines(result)))
    return 0 if not result["faults"] and result.get("max_rel_error", 0.0) <= 1e-5 else 1


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, as JSON."""
    require_tools()
    kind = load_kind(arguments.preset)
    preset = kind.preset
    if arguments.medium:
        preset = preset.model_copy(update={"medium": arguments.medium})
    _say("measuring this machine")
    here = machine()
    scale = arguments.scale or fitting_scale(preset, arguments.devices, here.core_gflops)
    wanted = preset.scaled(scale)
    computer = here.computer(wanted)
    with lab(wanted, arguments.devices, computer, _say) as running:
        _say("calibrating")
        found = emulated(running, wanted, computer)
        result = {
            "preset": kind.name,
            "medium": wanted.medium,
            "devices": arguments.devices,
            "scale": scale,
            "discovery": "static list",
            "emulated": found.json(),
            "faults": found.faults(),
        }
        if arguments.model:
            result |= _answered(running, arguments.model, arguments.strategy)
        if arguments.keep:
            _say(f"coordinator: {running.client.url} in {running.network.host}; Ctrl-C ends it")
            _until_interrupted()
    return result


def _answered(running: Lab, model: str, strategy: str) -> dict[str, Any]:
    """A few requests, compared with the whole model."""
    wait_until_measured(running, _say)
    loaded = catalogue.load(model)
    feeds = random_inputs(load_graph(loaded.proto, loaded.name))
    whole = WholeModel(loaded.proto).run(feeds)
    rounds = Rounds(running.client, model, write_tensors(feeds), whole)
    case = Case(strategy, running.devices, Choice(strategy, running.devices))
    rounds.warm_up([case], _say)
    if case.reason:
        return {"model": model, "strategy": strategy, "reason": case.reason}
    for _ in rounds.measure([case], _REPEAT):
        _say(f"{case.samples[-1].latency_s:.3f} s")
    return {
        "model": model,
        "strategy": strategy,
        "latency_s": case.latency_s,
        "predicted_latency_s": case.predicted_s,
        "max_rel_error": case.comparison.max_rel_error,
    }


def _lines(result: dict[str, Any]) -> list[str]:
    text = [
        f"{result['devices']} x {result['preset']}, {result['medium']}, {result['scale']:g} times "
        f"as fast as they are; workers by {result['discovery']}"
    ]
    for name, row in result["emulated"].items():
        if isinstance(row, dict):
            values = row["measured"] or [row["wanted"]]
            text.append(
                f"  {name}: {min(values):.4g} to {max(values):.4g}, wanted {row['wanted']:.4g}"
            )
    text += [f"  OFF: {fault}" for fault in result["faults"]]
    if "latency_s" in result:
        text.append(
            f"{result['model']}, {result['strategy']}: {result['latency_s']:.3f} s (predicted "
            f"{result['predicted_latency_s']:.3f} s), difference {result['max_rel_error']:.2g}"
        )
    return text


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _until_interrupted() -> None:
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lab", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--preset", default="pi3-1ghz", help=f"{', '.join(names())}, or a .toml")
    parser.add_argument("--devices", type=_devices, default=8, help="the host's worker included")
    parser.add_argument("--medium", choices=("star", "air", "switch"), help="else the preset's")
    parser.add_argument("--scale", type=float, help="how many times as fast; else what fits")
    parser.add_argument("--model", default="", help="send requests for this one")
    parser.add_argument("--strategy", default="halo")
    parser.add_argument("--keep", action="store_true", help="stay up until Ctrl-C")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _devices(text: str) -> int:
    count = int(text)
    if not 1 <= count <= MOST_DEVICES:
        raise argparse.ArgumentTypeError(f"from 1 to {MOST_DEVICES}")
    return count


if __name__ == "__main__":
    raise SystemExit(main())
