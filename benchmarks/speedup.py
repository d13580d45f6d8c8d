"""Speed-ups on the lab's emulated clusters: every strategy against the best device alone, in turns.

The baseline is the whole, unsplit model by the fastest engine of one device under the same pace
(one thread: a pace is a share of one core). `lw`, `efl`, `ofl`, `aofl` are as published: inputs and
outputs of every block pass the host, and each block waits for the one before it. Every answer is
compared with the whole model's. Results are one JSON and one SVG per cluster.

    python -m benchmarks.speedup                      (make lab)
    python -m benchmarks.speedup --full --resume      (make lab-full)
    python -m benchmarks.speedup --devices 4 --models digits --strategies aofl,halo --repeat 7
    python -m benchmarks.speedup --case 2-1 --models vgg16-256-conv     (AOFL, Table 2)
    python -m benchmarks.speedup --preset pi4-gbe --case 20x --models resnet50,yolov8n \
        --strategies auto --crowd resnet50,yolov8n --unplug resnet50,yolov8n
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks import published
from benchmarks.lab.bars import Bar, bars_svg
from benchmarks.lab.bench import Bench, Setting, bench
from benchmarks.lab.cluster import Say
from benchmarks.lab.crowd import crowd
from benchmarks.lab.measure import ask, chosen, measure, steps
from benchmarks.lab.network import MOST_DEVICES, require_tools
from benchmarks.lab.pictures import short_name
from benchmarks.lab.tables import crowd_line, heading, most, unplug_line
from benchmarks.lab.unplug import unplugged
from benchmarks.report import ROOT, provenance
from imbrex import terminal
from imbrex.kinds.presets import load_kind, names
from models.check.check import TOLERANCE
from protos.errors import ImbrexError

RESULTS = ROOT / "benchmarks" / "results"
STRATEGIES = ("lw", "efl", "ofl", "aofl", "halo", "auto", "halo+fp16")
MODELS = ("vgg16-256-conv", "yolov2", "resnet50")
FULL_MODELS = (*MODELS, "vgg16", "digits")
FULL_DEVICES = (2, 4, 8)
CROWD_S = 60.0
TESTBED = "pi3-1ghz"
# One has a device of four cores, which a pace cannot emulate. Ours has a mini PC beside seven Pis.
CASES = (
    *(case for case in published.CASES if not case.cores),
    published.Case("20x", (20.0, *7 * (1.0,)), 8, None),
)
LEAST_REPEAT = 5
# How long it is looked at what others do on this machine.
_LOOK_S = 3.0
# Of the bytes that a plan says; what recovery repeats would show here.
BYTES_TOLERANCE = 0.02
# Of one device alone; two runs of the same program differ by as much.
NEVER_SLOWER = 0.97
# What an answer that is open as a cable is pulled may take, in undisturbed medians.
MOST_UNPLUGGED = 2.5
# Of the answer, where another wire than the exact one was asked for: networks of random weights
# are the hard case.
LOSSY_TOLERANCE = 0.1

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wish:
    """What to measure in each cluster, and where results go; `resume` keeps models that a
    result has already. `crowd` are models that many clients ask for at once, `unplug` those that a
    few ask for while cables are pulled.
    """

    models: tuple[str, ...]
    strategies: tuple[str, ...]
    repeat: int
    output: Path
    resume: bool
    crowd: tuple[str, ...] = ()
    unplug: tuple[str, ...] = ()

    def loads(self) -> Iterator[tuple[str, str]]:
        """What else to measure, and of which model."""
        yield from product(("crowd",), self.crowd)
        yield from product(("unplug",), self.unplug)


def main() -> int:
    """The exit code: 1 if anything is off, an answer differs, or nothing could be measured."""
    arguments = _arguments()
    models = arguments.models or (FULL_MODELS if arguments.full else MODELS)
    wish = Wish(
        tuple(models),
        tuple(arguments.strategies or STRATEGIES),
        arguments.repeat,
        arguments.output,
        arguments.resume,
        tuple(arguments.crowd),
        tuple(arguments.unplug),
    )
    found: list[str] = []
    try:
        require_tools()
        for name in wish.strategies:
            chosen(name)  # a wrong name is refused before anything starts
        for setting in _full_settings() if arguments.full else [_setting(arguments)]:
            document = run(setting, wish)
            print("\n".join(_lines(document)), flush=True)
            found += faults(document)
    except ImbrexError as error:
        print(f"error: {error.cause}\ncure:  {error.cure}", file=sys.stderr)
        return 1
    for fault in found:
        print(f"OFF: {fault}", file=sys.stderr)
    return 1 if found else 0


def run(setting: Setting, wish: Wish) -> Document:
    """Measures what is missing in one cluster; writes after each model."""
    path = wish.output / f"speedup-{setting.name}.json"
    done = _before(path) if wish.resume else {}
    missing = [model for model in wish.models if short_name(model) not in done.get("models", {})]
    loads = [(name, model) for name, model in wish.loads() if model not in done.get(name, {})]
    if not missing and not loads:
        return done
    with terminal.progress_bar() as bar:
        total = len(missing) * steps(wish.strategies, wish.repeat)
        task = bar.add_task(setting.name, total=total)

        def say(what: str) -> None:
            _print(bar.console.is_terminal, f"{setting.name}: {what}")
            bar.update(task, description=f"{setting.name}: {what}")

        def step(what: str) -> None:
            say(what)
            bar.advance(task)

        busy = round(psutil.cpu_percent(_LOOK_S) / 100, 3)
        with bench(setting, say) as running:
            about = running.about()
            # What was off as earlier models were measured stays so.
            known = [*done.get("faults", []), *about["faults"]]
            document = {**done, **about, "faults": known, "machine_busy_before": busy}
            document.setdefault("models", {})
            say("\n".join(running.lines()))
            for model in missing:
                document["models"][short_name(model)] = _measured(running, model, wish, step)
                _write(path, document)
            for name, model in loads:
                by = partial(crowd, seconds=CROWD_S) if name == "crowd" else unplugged
                found = by(running.lab, ask(running.lab, model), say=say)
                document.setdefault(name, {})[model] = found
                _write(path, document)
    return document


def faults(document: Document) -> list[str]:
    """What keeps a result from counting."""
    found = [f"{document['preset']}: {fault}" for fault in document["faults"]]
    for model, measured in document["models"].items():
        for name, result in measured["strategies"].items():
            if "reason" in result:
                continue
            if result["max_rel_error"] > (LOSSY_TOLERANCE if "+" in name else TOLERANCE):
                found.append(f"{model}, {name}: differs by {result['max_rel_error']:.2g}")
            if name == "auto" and result["speedup"] < NEVER_SLOWER:
                found.append(f"{model}, {name}: {result['speedup']} times one device")
            if abs(result["bytes_error"]) > BYTES_TOLERANCE:
                found.append(f"{model}, {name}: bytes are {result['bytes_error']:+.1%} of planned")
    return found + list(_faults_under_load(document))


def _faults_under_load(document: Document) -> Iterator[str]:
    for name in ("crowd", "unplug"):
        for model, measured in document.get(name, {}).items():
            if measured["max_rel_error"] > TOLERANCE:
                yield f"{model}, {name}: differs by {measured['max_rel_error']:.2g}"
    for model, measured in document.get("crowd", {}).items():
        if measured["ratio"] < NEVER_SLOWER:
            yield f"{model}, crowd: {measured['ratio']} times one device"
    for model, measured in document.get("unplug", {}).items():
        if measured["lost"]:
            yield f"{model}: {measured['lost']} requests were lost as cables were pulled"
        if measured["ratio"] > MOST_UNPLUGGED:
            yield f"{model}: an answer took {measured['ratio']} times the undisturbed median"


def _measured(running: Bench, model: str, wish: Wish, step: Say) -> Document:
    measured = measure(running.lab, ask(running.lab, model), wish.strategies, wish.repeat, step)
    return {**measured, "repeat": wish.repeat, "provenance": provenance()}


def _before(path: Path) -> Document:
    """An earlier result; nothing where there is none."""
    try:
        found: Document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found


def _write(path: Path, document: Document) -> None:
    """The result and its picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    groups: dict[str, Mapping[str, Bar]] = {}
    for model, measured in document["models"].items():
        alone_s = measured["baseline"]["latency_s"]
        groups[model] = {
            name: Bar(result["speedup"], alone_s / result["predicted_latency_s"])
            for name, result in measured["strategies"].items()
            if "reason" not in result
        }
    title = f"{heading(document)}: times as fast as one device alone"
    path.with_suffix(".svg").write_text(bars_svg(title, document["devices"], groups))


def _lines(document: Document) -> Iterator[str]:
    yield (
        f"{heading(document)}, times at scale {document['scale']:g}; "
        f"{document['machine_busy_before']:.0%} of this machine busy before"
    )
    head = ("strategy", "seconds", "speed-up", "predicted", "error", "coordinator", "difference")
    form = "  {:<10}{:>9}{:>13}{:>11}{:>8}{:>13}{:>12}"
    for model, measured in document["models"].items():
        yield f"{model}: one device alone {measured['baseline']['latency_s']:.3f} s"
        yield form.format(*head)
        for name, result in measured["strategies"].items():
            if "reason" in result:
                yield f"  {name:<10} {result['reason']}"
                continue
            yield form.format(
                name,
                f"{result['latency_s']:.3f}",
                f"{result['speedup']:.2f} of {most(document):g}",
                f"{result['predicted_latency_s']:.3f}",
                f"{result['prediction_error']:+.0%}",
                f"{result['coordinator_cpu_ms']:.0f} ms CPU",
                f"{result['max_rel_error']:.1g}",
            )
            where = "  ".join(f"{part} {value:.3f}" for part, value in result["where_s"].items())
            yield f"    {where}"
    for model, found in document.get("crowd", {}).items():
        yield crowd_line(model, found)
    for model, found in document.get("unplug", {}).items():
        yield unplug_line(model, found)


def _full_settings() -> Iterator[Setting]:
    """Every preset on 2, 4 and 8 devices; the papers' also on `air`, and unlike devices."""
    for name in names():
        for devices in FULL_DEVICES:
            yield Setting(name, devices)
            if name == TESTBED:
                yield Setting(name, devices, "air")
    for case in CASES:
        yield Setting(TESTBED, len(case.ghz), case=case)


def _setting(arguments: argparse.Namespace) -> Setting:
    load_kind(arguments.preset)
    case = next((case for case in CASES if case.name == arguments.case), None)
    devices = len(case.ghz) if case else arguments.devices
    made = Setting(arguments.preset, devices, scale=arguments.scale, case=case)
    return replace(made, medium=arguments.medium) if arguments.medium else made


def _print(on_terminal: bool, text: str) -> None:
    if not on_terminal:
        print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speedup", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--preset", default="pi3-1ghz", help=f"{', '.join(names())}, or a .toml")
    parser.add_argument("--devices", type=_whole(1, MOST_DEVICES), default=8)
    parser.add_argument("--medium", choices=("star", "air", "switch"), help="else the preset's")
    parser.add_argument("--scale", type=float, help="how many times as fast; else what fits")
    parser.add_argument("--case", choices=[case.name for case in CASES], help="of unlike devices")
    parser.add_argument("--models", type=_list, help=f"default: {','.join(MODELS)}")
    parser.add_argument("--strategies", type=_list, help=f"default: {','.join(STRATEGIES)}")
    parser.add_argument("--repeat", type=_whole(LEAST_REPEAT, 99), default=LEAST_REPEAT)
    parser.add_argument("--crowd", type=_list, default=[], help="models that 32 clients ask for")
    parser.add_argument("--unplug", type=_list, default=[], help="models to pull cables under")
    parser.add_argument("--full", action="store_true", help="every preset, 2, 4 and 8 devices")
    parser.add_argument("--resume", action="store_true", help="keep what a result has already")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, help="folder of results")
    return parser.parse_args()


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(least: int, most: int) -> Callable[[str], int]:
    """A whole number within bounds, for argparse."""

    def read(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"from {least} to {most}")
        return value

    return read


if __name__ == "__main__":
    raise SystemExit(main())
