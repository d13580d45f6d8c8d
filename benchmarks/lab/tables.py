"""Tables of what the lab measured, which `benchmarks.tables` puts into pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.anchors.real import told
from benchmarks.compare import duration
from imbrex.kinds.presets import FOLDER, load_kind
from protos.wire.facts import ONNXRUNTIME

RATES = "GFLOP/s per device, all at once"
# An older preset has less than this share of today's rate, which maps lower by up to an eighth.
_SLOWER = 0.8
# More than this share of the cores in use by others, and times are of this machine, not of a Pi.
_BUSY_SHARE = 0.1
# What docs/performance.md shows: clusters of equal devices, and networks by a strategy each.
_CLUSTERS = (("pi3-1ghz", "star"), ("pi4-gbe", "switch"), ("pi5-gbe", "switch"))
_NETWORKS = {
    **dict.fromkeys(("vgg16-256-conv", "vgg16", "yolov2", "resnet50", "digits"), "auto"),
    **dict.fromkeys(("yolov8n", "yolo11n"), "auto+boxes"),
    **dict.fromkeys(("deit_tiny.script", "mobilenetv4_conv_small.script"), "auto"),
}

_HEAD = (
    *("", "seconds", "speed-up", "fastest", "predicted", "MB moved", "coordinator's CPU"),
    "difference",
)
PARTS = {
    "ideal": "ideal",
    "redundant": "redundant",
    "slower_kernels": "slower kernels",
    "first_input": "first input",
    "between_tasks": "between tasks",
    "after_last_task": "after the last",
}


def heading(found: Mapping[str, Any]) -> str:
    """What a result is about."""
    clocks = ", ".join(f"{clock:g}" for clock in found["clocks"])
    unlike = f" at clocks of {clocks}" if len(set(found["clocks"])) > 1 else ""
    return f"{found['devices']} x {found['preset']}{unlike}, {found['medium']}"


def older(found: Mapping[str, Any]) -> str:
    """What a device computed then, if its preset is faster by now."""
    files = (folder / f"{found['preset']}.toml" for folder in (FOLDER, Path(__file__).parent))
    preset = next((str(file) for file in files if file.exists()), None)
    if preset is None:
        return ""
    then = found["emulated"][RATES]["wanted"] / found["scale"]
    return f"{then:g} GFLOP/s" if then < _SLOWER * load_kind(preset).gflops else ""


def most(found: Mapping[str, Any]) -> float:
    """How many times as fast as the fastest device all are together, at best."""
    clocks = found["clocks"]
    return float(sum(clocks) / max(clocks))


def _fastest(measured: Mapping[str, Any], result: Mapping[str, Any]) -> float:
    """The speed-up of the fastest request over the fastest of the baseline."""
    return float(min(measured["baseline"]["samples_s"]) / min(result["samples_s"]))


def summary(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What `auto` gains on equal devices, in their own time, and where a request's time goes."""
    head = ("devices", "network", "one alone", "a real one", "together", "gain")
    yield f"| {' | '.join((*head, 'ideal', 'slower kernels', 'waiting'))} |"
    yield "|---" * 9 + "|"
    for run in documents:
        unlike = len(set(run["clocks"])) > 1
        if unlike or (run["preset"], run["medium"]) not in _CLUSTERS:
            continue
        for model in (name for name in run["models"] if name in _NETWORKS):
            measured = run["models"][model]
            auto = measured["strategies"][_NETWORKS[model]]
            parts = auto["where_s"]
            total_s = sum(parts.values())
            waiting_s = sum(
                parts[part] for part in ("first_input", "between_tasks", "after_last_task")
            )
            shares = (parts["ideal"], parts["redundant"] + parts["slower_kernels"], waiting_s)
            cells = (
                f"{run['devices']} x {run['preset']}{_at(older(run))}",
                f"`{model.removesuffix('.script')}`",
                _alone(measured["baseline"], run["scale"]),
                told(run["preset"], model),
                duration(auto["latency_s"] * run["scale"]),
                f"{auto['speedup']:.2f}",
                *(f"{share / total_s:.0%}" for share in shares),
            )
            yield f"| {' | '.join(cells)} |"


def _at(rate: str) -> str:
    return f" at {rate}" if rate else ""


def _alone(baseline: Mapping[str, Any], scale: float) -> str:
    """What one device takes by its fastest engine and, if that is another one, by onnxruntime."""
    seconds = duration(baseline["latency_s"] * scale)
    if baseline.get("engine", ONNXRUNTIME) == ONNXRUNTIME:
        return seconds
    return f"{seconds} ({baseline['engine']}; {duration(baseline['onnxruntime_s'] * scale)})"


def document(run: Mapping[str, Any]) -> str:
    """Everything of one run."""
    return "\n".join(_document(run))


def _document(found: Mapping[str, Any]) -> Iterator[str]:
    then = older(found)
    yield (
        (f"An older preset: a device computed {then}. " if then else "")
        + _speed(found["scale"])
        + (
            f"Off: {'; '.join(found['faults'])}. "
            if found["faults"]
            else "Calibrated within 10 %. "
        )
        + _busy(found["machine_busy_before"])
    )
    for model, measured in found["models"].items():
        yield from _model(model, measured, found)
    for model, crowd in found.get("crowd", {}).items():
        yield ""
        yield crowd_line(model, crowd)
    for model, pulled in found.get("unplug", {}).items():
        yield ""
        yield unplug_line(model, pulled)


def unplug_line(model: str, unplugged: Mapping[str, Any]) -> str:
    """What clients got while cables were pulled."""
    return (
        f"`{model}`, {unplugged['clients']} clients, {unplugged['cables']} cables pulled: "
        f"{unplugged['answers']} answers, {unplugged['lost']} lost; the slowest that was open took "
        f"{unplugged['ratio']} times the undisturbed median."
    )


def crowd_line(model: str, crowd: Mapping[str, Any]) -> str:
    """What a closed loop of clients got."""
    return (
        f"{crowd['clients']} clients in a closed loop, `{model}`: "
        f"{crowd['images_per_s']:.2f} images per second, **{crowd['ratio']:.2f}** times one "
        f"device; an answer takes {crowd['latency_s']} s."
    )


def _speed(scale: float) -> str:
    if scale == 1:
        return "Everything runs at the devices' own speed. "
    return f"Everything runs at {scale:g} times the devices' speed. "


def _busy(share: float) -> str:
    if share <= _BUSY_SHARE:
        return f"The machine was idle before the run ({share:.0%} of its cores busy)."
    return (
        f"**Measured under load**: before the run, other programs used {share:.0%} of the "
        "machine's cores."
    )


def _model(model: str, measured: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    alone = measured["baseline"]
    engine = alone.get("engine", ONNXRUNTIME)
    plain = f" ({alone['onnxruntime_s']:.2f} s by onnxruntime)" if engine != ONNXRUNTIME else ""
    real = told(found["preset"], model) if max(found["clocks"]) == 1 else ""
    own = duration(alone["latency_s"] * found["scale"])
    able = [strategy for strategy in measured["strategies"].values() if "reason" not in strategy]
    busy = max((strategy["machine_busy_share"] for strategy in able), default=0.0)
    dropped = max((n for strategy in able for n in strategy["packets_dropped"]), default=0)
    yield ""
    yield (
        f"`{model}` takes {alone['latency_s']:.2f} s on one device alone by {engine}{plain}; at "
        f"best, all are {most(found):g} times as fast. "
        + (f"In its own time it takes {own}; a real one: {real}. " if real else "")
        + f"Medians of {measured['repeat']}. At most, this machine's cores were busy for "
        f"{busy:.0%} of the time, and {dropped} packets of a request were dropped."
    )
    yield ""
    yield f"| {' | '.join(_HEAD)} | {' | '.join(PARTS.values())} |"
    yield "|---" * (len(_HEAD) + len(PARTS)) + "|"
    for name, result in measured["strategies"].items():
        if "reason" in result:
            yield f"| `{name}` | {result['reason']} |"
            continue
        cells = [
            f"`{name}`",
            f"{result['latency_s']:.3f}",
            f"**{result['speedup']:.2f}**",
            f"{_fastest(measured, result):.2f}",
            f"{result['prediction_error']:+.0%}",
            f"{sum(result['bytes'].values()) * 1e-6:.1f}",
            f"{result['coordinator_cpu_ms']:.0f} ms",
            f"{result['max_rel_error']:.1g}",
            *(f"{result['where_s'][part]:.3f}" for part in PARTS),
        ]
        yield f"| {' | '.join(cells)} |"
