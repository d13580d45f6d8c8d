"""The demo's report as text or as a JSON object."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from imbrex import terminal
from imbrex.demo.likeness import Likeness
from imbrex.demo.measurement import PlanRun, all_right, labels
from imbrex.demo.question import Question
from models.check.tolerance import STATISTICS, told
from models.run.reference import Comparison
from protos.wire.facts import ONNXRUNTIME

_BAR_WIDTH = 44
# Predictions are good to about 10 %; a larger error has another cause.
_SLOWER = 1.3
_WORTH_A_WORD_MS = 0.5

# What each phase of a request is called on the first screen, and what it means.
_PHASES = {
    "queue": ("wait", "waiting for its turn"),
    "decode": ("decode", "picture to tensor"),
    "scatter": ("send", "sending its parts"),
    "compute": ("compute", "computing and exchanging"),
    "gather": ("fetch", "fetching results"),
}


@dataclass(frozen=True, slots=True)
class DemoResult:
    """All results of the demo."""

    question: Question
    devices: Sequence[Mapping[str, Any]]
    measured: PlanRun
    like: Likeness | None = None
    # (devices, seconds), if they were measured.
    curve: Sequence[tuple[int, float]] = ()

    @property
    def right(self) -> bool | None:
        """Whether the predictions are right; None if the truth is not known."""
        return all_right(self.question, self.measured.predictions)

    @property
    def same(self) -> bool:
        """Whether the cluster's raw answers equal the whole model's within the wire's tolerance."""
        judgement = self.measured.judgement
        if self.encoded:
            return math.isfinite(judgement.comparison.max_rel_error)
        return judgement.excess <= 1.0

    @property
    def encoded(self) -> bool:
        """Whether maps were sent in an encoding that changes the answer."""
        return bool(self.measured.plan["wire"] != "exact")

    @property
    def ok(self) -> bool:
        """Whether the demo succeeded."""
        return self.same and self.right is not False

    def as_json(self) -> dict[str, Any]:
        """The documented JSON object."""
        measured, plan = self.measured, self.measured.plan
        names = {device["id"]: device["name"] for device in self.devices}
        baseline = measured.baseline["device"]
        return {
            "model": self.question.model,
            "strategy": plan["strategy"],
            "workers": len(self.devices),
            "predictions": measured.predictions,
            "latency_s": round(measured.latency_s, 6),
            "single_device_latency_s": round(measured.alone_s, 6),
            "baseline_device": names.get(baseline, baseline),
            "speedup": round(measured.speedup, 3),
            "predicted_latency_s": round(measured.predicted_s, 6),
            "max_abs_error": measured.comparison.max_abs_error,
            "max_rel_error": measured.comparison.max_rel_error,
            "bytes": measured.answers[-1]["bytes"],
            "planned_bytes": plan["bytes"],
            "plan_version": plan["version"],
            "wire": plan["wire"],
            "like": self.like.name if self.like else "",
            "scale": measured.scale,
            "curve": {str(count): round(seconds, 6) for count, seconds in self.curve},
        }


def show(outcome: DemoResult, console: Console, *, explain: bool) -> None:
    """The first screen, ten lines of at most 80 characters (more only for a curve or long names);
    with `explain`, every section of the report behind it.
    """
    for line in _first_screen(outcome):
        console.print(line)
    for title, part in (
        ("Answer", _answer),
        ("Workers", _workers),
        ("Plan", _plan),
        ("Where the time went", _time),
        ("Compared", _compared),
    ):
        if explain:
            console.print()
            console.print(terminal.heading(title))
            part(outcome, console)


def _first_screen(outcome: DemoResult) -> Iterator[Text | str]:
    measured, count = outcome.measured, len(outcome.devices)
    yield _what(outcome)
    yield _found(outcome)
    yield ""
    rows = [("one alone", measured.alone_s), ("together", measured.latency_s)]
    if outcome.curve:
        rows = [rows[0], *((_devices(count), seconds) for count, seconds in outcome.curve)]
    longest = max(seconds for _, seconds in rows)
    for name, seconds in rows:
        bar = terminal.bar(seconds / longest, _BAR_WIDTH)
        yield f"{name:>10}  {bar:<{_BAR_WIDTH}}  {terminal.duration(seconds)}"
    yield ""
    if measured.speedup >= 1:
        predicted = terminal.duration(measured.predicted_s)
        yield Text(
            f"{measured.speedup:.1f} times as fast as one alone (predicted: {predicted})", "bold"
        )
    else:
        yield f"slower than one alone: {_why_slower(outcome)}"
    yield _verdict(outcome)
    yield "time spent: " + ", ".join(
        f"{name} {measured.phase_ms(phase):.0f} ms"
        for phase, (name, _) in _PHASES.items()
        if phase != "queue" or measured.phase_ms(phase) >= _WORTH_A_WORD_MS
    )
    other = "pi5" if outcome.like and outcome.like.name == "pi4" else "pi4"
    yield f"try next: --curve (1 to {count} devices), --like {other}, --explain, --keep (the page)"


def _what(outcome: DemoResult) -> str:
    count, like = len(outcome.devices), outcome.like
    if like is None:
        return f"{count} workers on this machine as it is, found over mDNS; a coordinator"
    speed = f", at 1/{1 / like.scale:g} speed" if like.scale < 1 else ""
    return (
        f"{count} emulated {like.kind.title}s ({like.gflops:g} GFLOP/s, {like.kind.network}){speed}"
    )


def _found(outcome: DemoResult) -> str:
    question, predictions = outcome.question, outcome.measured.predictions
    named = f"{question.model} on {question.shown_as}"
    if question.truth is not None:
        right = "all correct" if outcome.right else "WRONG"
        return f"{named}: {len(predictions)} digits found, {right}"
    if question.trained and question.media_type.startswith("image/"):
        return f"{named}: {len(predictions)} found"
    return f"{named}" + ("" if question.trained else " (untrained: only times mean something)")


def _why_slower(outcome: DemoResult) -> str:
    measured = outcome.measured
    sending_ms = measured.phase_ms("scatter") + measured.phase_ms("gather")
    saved_ms = 1e3 * measured.alone_s - measured.phase_ms("compute")
    if measured.latency_s > _SLOWER * measured.predicted_s:
        return "this machine is busy; try again when it is idle"
    if saved_ms > 0:
        return f"sending takes {sending_ms:.0f} ms, dividing the work saves {saved_ms:.0f} ms"
    if outcome.like is None:
        return f"{len(outcome.devices)} workers share {len(os.sched_getaffinity(0))} cores"
    return "this network is too small to be divided on such devices"


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def _answer(outcome: DemoResult, console: Console) -> None:
    question, predictions = outcome.question, outcome.measured.predictions
    if question.media_type.startswith("image/") or question.truth is not None:
        console.print(f"{question.shown_as}: {len(predictions)} found")
        console.print(terminal.predictions_table(predictions))
    else:
        shapes = ", ".join(f"{e['name']} {'x'.join(map(str, e['shape']))}" for e in predictions)
        console.print(f"{question.shown_as} in, {shapes} out")
    if not question.trained:
        console.print("(untrained weights, for benchmarks: the values mean nothing)")
    if question.truth is not None:
        shown = labels(question.truth)
        console.print(
            Text(f"correct: the digits on the sheet are {shown}", "green")
            if outcome.right
            else Text(f"WRONG: the digits on the sheet are {shown}", "red")
        )


def _workers(outcome: DemoResult, console: Console) -> None:
    console.print(
        f"{len(outcome.devices)} found over mDNS on loopback by a coordinator, which only plans"
    )
    if outcome.like is not None:
        told = outcome.like.worker
        console.print(
            f"each paced to {told.pace:.3f} of a core, and charged {told.message_ms:.2g} ms per "
            f"message, {told.task_ms:.2g} ms per task; rates and times of this table are those of "
            "the emulation, not of the device"
        )
    made = terminal.table("worker", "address", ">pace", ">GFLOP/s measured", ">Mbit/s to it")
    for device in outcome.devices:
        made.add_row(
            device["name"],
            device["address"],
            f"{device['pace']:.3f}",
            terminal.number(device["gflops"]),
            terminal.number(device["mbps"]),
        )
    console.print(made)


def _plan(outcome: DemoResult, console: Console) -> None:
    plan = outcome.measured.plan
    names = {str(device["id"]): str(device["name"]) for device in outcome.devices}
    console.print(terminal.plan_sentence(plan, outcome.measured.scale))
    console.print(terminal.plan_table(plan, names))
    for unused in plan["devices_unused"]:
        console.print(
            f"{names.get(unused['device'], unused['device'])} left out: {unused['reason']}"
        )
    for note in plan.get("notes", ()):
        console.print(f"note: {note}")


def _time(outcome: DemoResult, console: Console) -> None:
    measured = outcome.measured
    made = terminal.table("phase", ">ms", "")
    for phase, (_, meaning) in _PHASES.items():
        made.add_row(phase, f"{measured.phase_ms(phase):.1f}", meaning)
    made.add_row("total", f"{measured.phase_ms('total'):.1f}", "")
    console.print(made)
    console.print(
        f"medians of {len(measured.answers)} warm requests; the first took "
        f"{measured.scale * measured.cold['timing_ms']['total']:.0f} ms"
    )
    moved, planned = measured.answers[-1]["bytes"], measured.plan["bytes"]
    console.print(
        "moved: "
        + ", ".join(
            f"{way} {terminal.size(moved[way])} (planned {terminal.size(planned[way])})"
            for way in moved
            if moved[way] or planned[way]
        )
    )


def _compared(outcome: DemoResult, console: Console) -> None:
    measured = outcome.measured
    names = {device["id"]: device["name"] for device in outcome.devices}
    device = names.get(measured.baseline["device"], measured.baseline["device"])
    engine, plain_s = measured.baseline["engine"], measured.baseline["onnxruntime_s"]
    others = ""
    if engine != ONNXRUNTIME and plain_s is not None:
        others = f" (by onnxruntime {terminal.duration(measured.scale * plain_s)})"
    console.print(
        f"{device} alone, the whole model by {engine}{others}, without a message: "
        f"{terminal.duration(measured.alone_s)}; together, without decoding the picture, "
        f"{terminal.duration(measured.latency_s)}: {measured.speedup:.2f}x (predicted "
        f"{terminal.duration(measured.predicted_s)})"
    )
    limit = told(outcome.question.whole.limit)
    if outcome.encoded:
        limit = f"maps sent as {measured.plan['wire']}"
    console.print(
        f"whole model: {measured.comparison} ({limit}), over {len(measured.answers)} answers"
    )


def _verdict(outcome: DemoResult) -> Text:
    """Whether the answer is that of the whole model."""
    if not outcome.same:
        return Text(
            f"A DIFFERENT ANSWER than the whole model's: {_off(outcome.measured.comparison)}", "red"
        )
    if outcome.encoded:
        sent = outcome.measured.plan["wire"]
        off = _off(outcome.measured.comparison)
        return Text(f"the answer with maps sent as {sent}: {off}", "green")
    exact = outcome.measured.comparison.max_rel_error <= STATISTICS
    verdict = "the same answer as" if exact else "an answer within the limit of"
    return Text(f"{verdict} the whole model in onnxruntime", "green")


def _off(comparison: Comparison) -> str:
    if not comparison.max_abs_error:
        return str(comparison)
    return f"{comparison.max_rel_error:.2g} of its largest value off"
