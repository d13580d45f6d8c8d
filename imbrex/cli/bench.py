"""`imbrex bench`: strategies on a running cluster, measured and compared with the prediction."""

import csv
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from rich.text import Text

from imbrex import terminal
from imbrex.calls import plain
from imbrex.cli.chart import speedup_svg
from imbrex.cli.measuring import Found, MeasureOptions, measure, question
from imbrex.cli.provenance import provenance
from imbrex.cli.rounds import PlanSamples
from imbrex.client import Client
from imbrex.described import require_writable, write
from models.check.check import TOLERANCE

OutputFormat = Literal["people", "json", "csv"]

# The device's keys that describe how it computes and how it is reached.
_FINGERPRINT = (
    *("id", "name", "fingerprint", "cpu", "cores", "mhz", "memory_bytes", "pace", "gflops"),
    *("threads", "concurrency", "mbps", "profiled", "correction", "host"),
)
BAR = 20


def bench(models: Sequence[str], url: str, asked: MeasureOptions, form: OutputFormat) -> int:
    """Measures one model after the other and prints; 1 if nothing could be measured or answers
    differ.
    """
    if asked.plot is not None:
        require_writable(asked.plot, "--plot")
    posed = {model: question(model, asked.seed) for model in models}
    found = []
    with Client(url) as client:
        for model, one in posed.items():
            found.append(measure(client, model, one, asked))
            if form == "people":
                show(found[-1])
        there = plain(client.devices())
    match form:
        case "json":
            terminal.print_json(as_json(found, there))
        case "csv":
            print_csv(found)
        case "people":
            pass
    if asked.plot is not None:
        write(asked.plot, plot(found), "--plot")
        if form == "people":
            terminal.out().print(f"drawn: {asked.plot}")
    return 0 if all(measured.same for measured in found) else 1


def as_json(found: Sequence[Found], there: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The documented object: of several models a list, and `there`, the devices."""
    called = {str(device["id"]): str(device["name"]) for device in there}
    models = [
        {
            **measured.about,
            "baseline": {"samples_s": list(measured.alone_s), **_quartiles(measured.alone_s)},
            "results": [result(case, measured.about, called) for case in measured.cases],
        }
        for measured in found
    ]
    prints = [{key: device[key] for key in _FINGERPRINT} for device in there]
    begin = models[0] if len(models) == 1 else {"models": models}
    return {**begin, "devices": prints, "provenance": provenance()}


def result(
    case: PlanSamples, about: Mapping[str, Any], called: Mapping[str, str]
) -> dict[str, Any]:
    """A case as JSON, or why it has none; `called` has the names of devices."""
    begin = {"strategy": case.label, "devices": case.devices}
    if case.reason:
        return {**begin, "reason": case.reason}
    return {
        **begin,
        "devices_used": [called.get(device, device) for device in case.plan["devices_used"]],
        "plan_version": case.plan["version"],
        "latency_s": case.latency_s,
        **_quartiles([sample.latency_s for sample in case.samples]),
        "predicted_latency_s": case.predicted_s,
        "prediction_error": round(case.predicted_s / case.latency_s - 1, 4),
        "speedup": round(about["single_device_latency_s"] / case.latency_s, 4),
        "bytes": dict(case.samples[-1].bytes),
        "planned_bytes": case.plan["bytes"],
        "max_abs_error": case.comparison.max_abs_error,
        "max_rel_error": case.comparison.max_rel_error,
        "samples_s": [sample.latency_s for sample in case.samples],
        "plan_versions": [sample.plan_version for sample in case.samples],
    }


def print_csv(found: Sequence[Found]) -> None:
    """A line for each sample, in the order of measurement; those of a round begin with the whole
    model on the best device.
    """
    out = csv.writer(sys.stdout, lineterminator="\n")
    head = ("model", "round", "strategy", "devices", "latency_s", "predicted_latency_s")
    out.writerow((*head, "plan_version", "scatter", "gather", "halo", "max_rel_error"))
    for measured in found:
        model = measured.about["model"]
        for number, alone_s in enumerate(measured.alone_s):
            out.writerow((model, number, "alone", 1, alone_s, "", "", 0, 0, 0, 0.0))
            for case in (case for case in measured.cases if case.samples):
                one = case.samples[number]
                moved = (one.bytes[way] for way in ("scatter", "gather", "halo"))
                first = (model, number, case.label, case.devices, one.latency_s, one.predicted_s)
                out.writerow((*first, one.plan_version, *moved, one.comparison.max_rel_error))


def show(found: Found) -> None:
    """The table for people; its first line is the whole model on the best device."""
    console, cases, about = terminal.out(), found.cases, found.about
    console.print(
        f"{about['model']} at {about['url']}: {about['repeat']} interleaved rounds; alone: the "
        f"whole model on {about['baseline_device']}, by its fastest engine"
    )
    made = terminal.table(
        *("strategy", ">of", ">median, ms", "", ">25 %", ">75 %", ">predicted, ms", ">error"),
        *(">speed-up", ">moved, MB", ">planned, MB", ">difference"),
    )
    alone_s = about["single_device_latency_s"]
    slowest = max(alone_s, *(case.latency_s for case in cases if case.samples))
    made.add_row("alone", "1", *_times(found.alone_s, slowest), "", "", "1.00")
    for case in cases:
        if case.reason:
            made.add_row(case.label, str(case.devices), "-")
            continue
        error = case.comparison.max_rel_error
        made.add_row(
            case.label,
            str(case.devices),
            *_times([sample.latency_s for sample in case.samples], slowest),
            terminal.ms(case.predicted_s),
            f"{case.predicted_s / case.latency_s - 1:+.0%}",
            f"{alone_s / case.latency_s:.2f}",
            terminal.mb(sum(case.samples[-1].bytes.values())),
            terminal.mb(sum(case.plan["bytes"].values())),
            Text(f"{error:.2g}", "green" if error <= TOLERANCE else "red"),
        )
    console.print(made)
    for case in cases:
        if case.reason:
            told = Text(f"{case.label} on {case.devices}: {case.reason}", "yellow")
            console.print(told, soft_wrap=not console.is_terminal)
    console.print(
        f"25 %, 75 %: quartiles, ms; difference: the largest of any answer from that of "
        f"{about['reference']}"
    )


def plot(found: Iterable[Found]) -> str:
    """Measured speed-ups, and predicted ones beside them."""
    lines: dict[str, list[tuple[int, float]]] = {}
    names = []
    for measured in found:
        names.append(str(measured.about["model"]))
        alone_s = measured.about["single_device_latency_s"]
        for case in measured.cases:
            if case.samples:
                name = f"{case.label}, {names[-1]}"
                lines.setdefault(name, []).append((case.devices, alone_s / case.latency_s))
                predicted = lines.setdefault(f"{name}, predicted", [])
                predicted.append((case.devices, alone_s / case.predicted_s))
    return speedup_svg(f"{', '.join(names)}, measured and predicted", lines)


def _quartiles(samples: Sequence[float]) -> dict[str, float]:
    """The first and third quartile, as numpy computes them."""
    low, high = (float(quantile) for quantile in np.quantile(samples, (0.25, 0.75)))
    return {"quartile_1_s": round(low, 6), "quartile_3_s": round(high, 6)}


def _times(samples: Sequence[float], slowest: float) -> tuple[str, str, str, str]:
    """Median, bar and quartiles."""
    median, (low, high) = statistics.median(samples), _quartiles(samples).values()
    bar = terminal.bar(median / slowest, BAR)
    return terminal.ms(median), bar, terminal.ms(low), terminal.ms(high)
