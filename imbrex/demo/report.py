"""The demo's report as text or as a JSON object."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from imbrex import terminal
from imbrex.demo.measure import Measured, all_right, labels
from imbrex.demo.question import Question
from models.tolerance import STATISTICS, told

# Predictions are good to about 10 %; a larger error has another cause.
SLOWER = 1.3

PHASES = {
    "queue": "waiting for its turn",
    "decode": "picture to tensor",
    "scatter": "sending parts",
    "compute": "computing",
    "gather": "fetching results",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """All results of the demo."""

    question: Question
    devices: Sequence[Mapping[str, Any]]
    measured: Measured
    pace: float

    @property
    def right(self) -> bool | None:
        """Whether the predictions are right; None if the truth is not known."""
        return all_right(self.question, self.measured.predictions)

    @property
    def same(self) -> bool:
        """Whether the cluster's raw answers equal the whole model's within the wire's tolerance."""
        error = self.measured.comparison.max_rel_error
        return math.isfinite(error) if self.encoded else error <= self.question.tolerance

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
        names = {each["id"]: each["name"] for each in self.devices}
        baseline = measured.baseline["device"]
        return {
            "model": self.question.model,
            "strategy": plan["strategy"],
            "workers": len(self.devices),
            "predictions": measured.predictions,
            "latency_s": round(measured.latency_s, 6),
            "single_device_latency_s": measured.baseline["latency_s"],
            "baseline_device": names.get(baseline, baseline),
            "speedup": round(measured.speedup, 3),
            "predicted_latency_s": plan["predicted_latency_s"],
            "max_abs_error": measured.comparison.max_abs_error,
            "max_rel_error": measured.comparison.max_rel_error,
            "bytes": measured.answers[-1]["bytes"],
            "planned_bytes": plan["bytes"],
            "plan_version": plan["version"],
            "wire": plan["wire"],
        }


def show(outcome: Outcome, console: Console) -> None:
    """The report as text, section by section."""
    for title, part in (
        ("Answer", _answer),
        ("Workers", _workers),
        ("Plan", _plan),
        ("Where the time went", _time),
        ("Compared", _compared),
    ):
        console.print()
        console.print(terminal.heading(title))
        part(outcome, console)


def _answer(outcome: Outcome, console: Console) -> None:
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


def _workers(outcome: Outcome, console: Console) -> None:
    console.print(f"{len(outcome.devices)} found over mDNS on loopback")
    if outcome.pace < 1:
        console.print(
            f"each paced to {outcome.pace:.2f} of a core, so that together they leave some of "
            "this machine free: each emulates a Raspberry Pi (--no-throttle turns this off)"
        )
    made = terminal.table("worker", "address", ">pace", ">GFLOP/s measured", ">Mbit/s to it")
    for each in outcome.devices:
        made.add_row(
            each["name"],
            each["address"],
            f"{each['pace']:.2f}",
            terminal.number(each["gflops"]),
            terminal.number(each["mbps"]),
        )
    console.print(made)


def _plan(outcome: Outcome, console: Console) -> None:
    plan = outcome.measured.plan
    names = {str(each["id"]): str(each["name"]) for each in outcome.devices}
    console.print(terminal.plan_sentence(plan))
    console.print(terminal.plan_table(plan, names))
    for each in plan["devices_unused"]:
        console.print(f"{names.get(each['device'], each['device'])} left out: {each['reason']}")
    for note in plan.get("notes", ()):
        console.print(f"note: {note}")


def _time(outcome: Outcome, console: Console) -> None:
    measured = outcome.measured
    made = terminal.table("phase", ">ms", "")
    for phase, meaning in PHASES.items():
        made.add_row(phase, f"{measured.phase_ms(phase):.1f}", meaning)
    made.add_row("total", f"{measured.phase_ms('total'):.1f}", "")
    console.print(made)
    console.print(
        f"medians of {len(measured.answers)} warm requests; the first took "
        f"{measured.cold['timing_ms']['total']:.0f} ms"
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


def _compared(outcome: Outcome, console: Console) -> None:
    measured = outcome.measured
    names = {each["id"]: each["name"] for each in outcome.devices}
    alone, together = float(measured.baseline["latency_s"]), measured.latency_s
    device = names.get(measured.baseline["device"], measured.baseline["device"])
    console.print(
        f"one device:  {device} alone, whole model in plain onnxruntime: "
        f"{terminal.duration(alone)}; together, without decoding, {terminal.duration(together)}: "
        f"{measured.speedup:.2f}x as fast (predicted "
        f"{terminal.duration(measured.plan['predicted_latency_s'])})"
    )
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if together > SLOWER * measured.plan["predicted_latency_s"] and load > cores:
        console.print(
            f"slower than predicted: other programs keep this machine busy (load {load:.1f} on "
            f"{cores} cores), and the workers' {outcome.pace * len(outcome.devices):.1f} cores "
            "are not free; try again when it is idle"
        )
    error = measured.comparison
    exact = error.max_rel_error <= STATISTICS
    verdict = "the same answer" if exact else "an answer within the limit"
    limit = told(outcome.question.tolerance)
    if outcome.encoded:
        verdict = limit = f"maps sent as {measured.plan['wire']}"
    if not outcome.same:
        verdict = "A DIFFERENT ANSWER"
    console.print(
        Text(
            f"whole model: {verdict}: {error} ({limit}), over {len(measured.answers)} answers",
            "green" if outcome.same else "red",
        )
    )
