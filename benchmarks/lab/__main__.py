"""Brings up the lab, says what it emulates, and sends one image through.

python -m benchmarks.lab [--preset pi3-1ghz] [--devices 8] [--medium star] [--scale 2]
                         [--model vgg16-256-conv] [--strategy halo]
                             [--trace FILE] [--keep] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks.lab.bench import Setting, bench
from benchmarks.lab.cluster import Lab
from benchmarks.lab.measure import ask
from benchmarks.lab.network import MOST_DEVICES, require_tools
from benchmarks.report import command_line, emit
from coordinator.answers import PlanChoice
from imbrex.calls import plain
from imbrex.cli.rounds import PlanSamples, Rounds
from imbrex.kinds.presets import names
from models.check.check import TOLERANCE
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
    emit(result, arguments, _text(result))
    return 0 if not result["faults"] and result.get("max_rel_error", 0.0) <= TOLERANCE else 1


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, as JSON."""
    require_tools()
    setting = Setting(arguments.preset, arguments.devices, arguments.medium, arguments.scale)
    with bench(setting, _say) as running:
        result = running.about()
        if not arguments.json:
            print("\n".join(running.lines()), flush=True)
        if arguments.model:
            result |= _answered(running.lab, arguments.model, arguments.strategy)
            if arguments.trace and "request_id" in result:
                trace = plain(running.lab.client.trace(result["request_id"]))
                arguments.trace.write_text(json.dumps(trace))
        if arguments.keep:
            where = running.lab.network.host
            _say(f"coordinator: {running.lab.client.url} in {where}; Ctrl-C ends it")
            _until_interrupted()
    return result


def _answered(running: Lab, model: str, strategy: str) -> dict[str, Any]:
    """A few requests, compared with the whole model."""
    question = ask(running, model)
    rounds = Rounds(running.client, model, question.body, question.expected)
    case = PlanSamples(strategy, running.devices, PlanChoice(strategy))
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
        "request_id": case.samples[-1].request_id,
    }


def _text(result: dict[str, Any]) -> str:
    if "latency_s" not in result:
        return str(result.get("reason", ""))
    return (
        f"{result['model']}, {result['strategy']}: {result['latency_s']:.3f} s (predicted "
        f"{result['predicted_latency_s']:.3f} s), difference {result['max_rel_error']:.2g}"
    )


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _until_interrupted() -> None:
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return


def _arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--preset", default="pi3-1ghz", help=f"{', '.join(names())}, or a .toml")
    parser.add_argument("--devices", type=_devices, default=8, help="the host's worker included")
    parser.add_argument("--medium", choices=("star", "air", "switch"), help="else the preset's")
    parser.add_argument("--scale", type=float, help="how many times as fast; else what fits")
    parser.add_argument("--model", default="", help="send requests for this one")
    parser.add_argument("--strategy", default="halo")
    parser.add_argument("--trace", type=Path, help="write the last request's trace here")
    parser.add_argument("--keep", action="store_true", help="stay up until Ctrl-C")
    return parser.parse_args()


def _devices(text: str) -> int:
    count = int(text)
    if not 1 <= count <= MOST_DEVICES:
        raise argparse.ArgumentTypeError(f"from 1 to {MOST_DEVICES}")
    return count


if __name__ == "__main__":
    raise SystemExit(main())
