"""Published times of single devices, beside what presets predict.

    python -m benchmarks.anchors [--json] [-o FILE]
    python -m benchmarks.anchors --write    writes the rates of the presets pi4-gbe and pi5-gbe
    python -m benchmarks.anchors --count    writes work.json beside this file

Times of onnxruntime in 32 bits are predicted, on a Pi 4 those of ncnn and OpenCV, and on a Pi 3B+
that of ncnn, as the simulator predicts one device alone: by the preset, whose rates are fitted to a
Pi 5's times of onnxruntime and a Pi 4's of ncnn, and by rates that were fitted without that
network. Other engines' times are listed. A source that does not state the precision counts as 16
bits. `--count` exports networks: the first time, it makes an environment with PyTorch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.anchors.fit import FORMS, PEAK_GFLOPS, Row, Time, fit, held_out, slower, untested
from benchmarks.anchors.real import document
from benchmarks.anchors.work import count, kept
from benchmarks.report import command_line, emit
from coordinator.costs.rates import RateCosts
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import FOLDER, load_kind
from protos.wire.facts import ONNXRUNTIME

PREDICTED = (
    ("pi5", "onnxruntime"),
    ("pi4", "onnxruntime"),
    ("pi4", "ncnn"),
    ("pi4", "opencv"),
    ("pi3bplus", "ncnn"),
)
PRESETS = {"pi5": "pi5-gbe", "pi4": "pi4-gbe", "pi3bplus": "pi3bplus"}
NCNN = "ncnn"
# The form of the presets.
FORM = "one rate"
# What precedes the other engines of a preset.
_OTHERS = "[[engine]]\n"
_SKIPPED = "imbrex neither builds nor exports this network"


def rows() -> list[Row]:
    """The published times: device, network, side of its input, engine, precision, threads (None of
    either: not stated), milliseconds and source; pictures per second where the source gives these.
    """
    published: list[Row] = document()["rows"]
    return published


def is_predicted(row: Row) -> bool:
    """Whether the presets are about such a time."""
    return row["precision"] == "f32" and (row["device"], row["engine"]) in PREDICTED


def times(device: str, engine: str) -> list[Time]:
    """The times that are predicted of a device and an engine."""
    work = kept()
    return [
        Time(row, work[row["network"]])
        for row in rows()
        if is_predicted(row)
        and (row["device"], row["engine"]) == (device, engine)
        and row["network"] in work
    ]


def shipped(device: str, engine: str = ONNXRUNTIME) -> RateCosts:
    """The costs of an engine in a device's preset; onnxruntime's for an engine that it lacks."""
    costs = cluster_of(load_kind(PRESETS[device]), 1).devices[0].costs
    assert isinstance(costs, RateCosts)
    return next((other for other in costs.others if other.engine == engine), costs)


def fitted() -> tuple[dict[tuple[str, str], RateCosts], float]:
    """Costs by device and engine, and how many times as long a Pi 4 takes as a Pi 5 with
    onnxruntime.
    """
    fast = fit(times("pi5", ONNXRUNTIME), FORM, shipped("pi5"))
    slow, factor = slower(fast, times("pi4", ONNXRUNTIME), shipped("pi4"))
    other = fit(times("pi4", NCNN), FORM, shipped("pi4"), math.inf)
    costs = {("pi5", ONNXRUNTIME): fast, ("pi4", ONNXRUNTIME): slow, ("pi4", NCNN): other}
    return costs, factor


def predictions() -> list[dict[str, Any]]:
    """Every time that is predicted with its errors, and the others with the reason."""
    learned = times("pi5", ONNXRUNTIME)
    unseen = held_out(learned, FORM, shipped("pi5"), lambda time: time.network)
    without = {time.network: error for time, error in zip(learned, unseen, strict=True)}
    work, found = kept(), []
    for row in filter(is_predicted, rows()):
        if row["network"] in work:
            costs = shipped(row["device"], row["engine"])
            error = Time(row, work[row["network"]]).error(costs)
            found.append(dict(row) | {"preset": error})
            if row["device"] == "pi5":
                found[-1]["held_out"] = without[row["network"]]
        else:
            found.append(dict(row) | {"skipped": _SKIPPED})
    return found


def forms() -> list[dict[str, Any]]:
    """How well each form predicts a Pi 5's times without the network, or its family."""
    learned, base = times("pi5", ONNXRUNTIME), shipped("pi5")
    result = []
    for form in FORMS:
        costs = fit(learned, form, base)
        alone, kin = (
            summary(held_out(learned, form, base, by))
            for by in (lambda time: time.network, lambda time: time.family)
        )
        result.append(
            {
                "form": form,
                "gflops": {
                    "dense": costs.gflops,
                    "1x1": costs.gflops * costs.rate_1x1,
                    "depthwise": costs.gflops * costs.rate_depthwise,
                    "product": costs.gflops * costs.rate_product,
                },
                "map_byte_ns": costs.map_byte_ns,
                "without_network": alone,
                "without_family": kin,
                "untested": untested(learned, form, costs),
            }
        )
    return result


def summary(errors: Sequence[float]) -> dict[str, float]:
    """The median of absolute errors, the share within a quarter, and the largest."""
    sizes = [abs(error) for error in errors]
    within = sum(size <= 0.25 for size in sizes) / len(sizes)
    return {"median": statistics.median(sizes), "within_25": within, "worst": max(sizes)}


def preset_texts() -> dict[Path, str]:
    """The presets' files with fitted rates."""
    costs, factor = fitted()
    counts = {key: len(times(*key)) for key in costs}
    sources = {
        ("pi5", ONNXRUNTIME): "fitted to {} times of onnxruntime",
        ("pi4", ONNXRUNTIME): f"a Pi 5's / {factor:.2f}, fitted to {{}} times",
        ("pi4", NCNN): "fitted to {} times of ncnn in 32 bits",
    }
    texts: dict[Path, str] = {}
    for (device, engine), source in sources.items():
        path = FOLDER / f"{PRESETS[device]}.toml"
        text = texts.get(path) or path.read_text()
        main, heading, others = text.partition(_OTHERS)
        told = f"{source.format(counts[device, engine])} [benchmarks.anchors]"
        if engine == ONNXRUNTIME:
            main = _with_rates(main, costs[device, engine], told)
        else:
            others = _with_rates(others, costs[device, engine], told)
        texts[path] = main + heading + others
    return texts


def _with_rates(text: str, costs: RateCosts, source: str) -> str:
    """The lines of an engine with these rates."""
    rates = {"gflops": f"{costs.gflops:.1f}", "map_byte_ns": f"{costs.map_byte_ns:.4f}"}
    lines = text.splitlines()
    place = next(index for index, line in enumerate(lines) if _key(line) in rates)
    rest = [line for line in lines if _key(line) not in rates]
    rest[place:place] = [f"{key} = {rate} # {source}" for key, rate in rates.items()]
    return "\n".join(rest) + "\n"


def _key(line: str) -> str:
    return line.partition(" = ")[0]


def _text(result: Mapping[str, Any]) -> str:
    lines = [
        "device        network          engine       published         preset   without it",
    ]
    for row in result["predicted"]:
        start = f"{row['device']:13} {row['network']:16} {row['engine']:12} {_published(row)}"
        if "skipped" in row:
            lines.append(f"{start}  skipped: {row['skipped']}")
            continue
        cells = (_predicted(row, key) for key in ("preset", "held_out"))
        lines.append(f"{start}  {'  '.join(cells)}".rstrip())
    for form in result["forms"]:
        rates = ", ".join(_rate(name, rate) for name, rate in form["gflops"].items())
        maps = f"{1 / form['map_byte_ns']:.1f} GB/s of maps"
        lines += [
            "",
            f"A Pi 5 by {form['form']}: GFLOP/s {rates}; {maps}",
            f"  fitted without the network: {_quality(form['without_network'])}",
            f"  fitted without its family:  {_quality(form['without_family'])}",
        ]
        lines += [
            f"  {name}: fitted, not tested, because at most one network shows this rate"
            for name in form["untested"]
        ]
    lines += ["", "Others, which are not predicted:"]
    lines += [
        f"{row['device']:13} {row['network']:20} {row['engine']:12} {row['precision']:8} "
        f"{_published(row)}" + (" 1 thread" if row["threads"] == 1 else "")
        for row in result["others"]
    ]
    return "\n".join(lines)


def _rate(name: str, gflops: float) -> str:
    most = " (as much as the processor can)" if gflops > 0.999 * PEAK_GFLOPS else ""
    return f"{name} {gflops:.0f}{most}"


def _quality(test: Mapping[str, float]) -> str:
    return (
        f"median error {test['median']:.1%}, {test['within_25']:.0%} of rows within 25 %, "
        f"worst {test['worst']:.0%}"
    )


def _published(row: Mapping[str, Any]) -> str:
    """Pictures per second have one digit behind the point."""
    rounding = f"±{0.05 / row['fps']:.0%}" if "fps" in row else ""
    return f"{row['ms']:7.1f} ms {rounding:4}"


def _predicted(row: Mapping[str, Any], key: str) -> str:
    error = row.get(key)
    return "" if error is None else f"{row['ms'] * (1 + error):6.0f} {error:+5.0%}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints both, or writes what is asked for."""
    parser = command_line(__doc__)
    parser.add_argument("--write", action="store_true", help="write the fitted presets")
    parser.add_argument("--count", action="store_true", help="count the networks' work again")
    given = parser.parse_args(arguments)
    if given.count:
        count()
    if given.write:
        for path, text in preset_texts().items():
            path.write_text(text)
    result = {
        "predicted": predictions(),
        "forms": forms(),
        "others": [row for row in rows() if not is_predicted(row)],
    }
    emit(result, given, _text(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
