"""`imbrex bench`: strategies on a running cluster, measured and compared with the prediction."""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from rich.text import Text

from coordinator.control.choice import Choice
from coordinator.library.naming import public_name
from coordinator.planning.strategies import STRATEGIES
from coordinator.serving.common.tensors import write_tensors
from coordinator.serving.v1.answers import Alone
from imbrex import terminal
from imbrex.calls import plain, read_file
from imbrex.cli.provenance import provenance
from imbrex.cli.rounds import WARM_UP, Case, Rounds
from imbrex.client import Client
from imbrex.described import network_of
from models.check import TOLERANCE
from models.reference import random_inputs
from protos.errors import BadRequest, Infeasible, Unavailable

Form = Literal["people", "json", "csv"]

# The device's keys that describe how it computes and how it is reached.
_FINGERPRINT = (
    *("id", "name", "fingerprint", "cpu", "cores", "mhz", "memory_bytes", "pace", "gflops"),
    *("threads", "concurrency", "mbps", "profiled", "correction", "host"),
)
BAR = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """What to measure: strategies (`all`: those of imbrex) over numbers of devices (None: all
    devices), each with every one of `wires`, and optionally a plan's file; how often, with which
    input.
    """

    strategies: Sequence[str]
    counts: Sequence[int] | None
    repeat: int
    seed: int
    plan: Path | None
    wires: Sequence[str] = ("",)


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured of one model; `alone_s` is the whole model on the best device, each time
    that it was measured.
    """

    cases: Sequence[Case]
    about: Mapping[str, Any]
    alone_s: Sequence[float]

    @property
    def same(self) -> bool:
        """Whether all answers are the reference's."""
        return all(_same(case) for case in self.cases if not case.reason)


def bench(model: str, url: str, asked: Asked, form: Form) -> int:
    """Measures and prints; 1 if nothing could be measured or answers differ."""
    body = question(model, asked.seed)
    with Client(url) as client:
        found = measure(client, model, body, asked)
        there = plain(client.devices())
    called = {str(each["id"]): str(each["name"]) for each in there}
    match form:
        case "json":
            results = [result(case, found.about, called) for case in found.cases]
            prints = [{key: each[key] for key in _FINGERPRINT} for each in there]
            end = {"results": results, "devices": prints, "provenance": provenance()}
            terminal.print_json({**found.about, **end})
        case "csv":
            _csv(found.cases)
        case "people":
            show(found)
    return 0 if found.same else 1


def measure(
    client: Client, model: str, body: bytes, asked: Asked, *, in_turns: bool = False
) -> Found:
    """Every case, and the whole model on the best device: once, or with them in every round.

    Raises:
        Unavailable: no device is ready.
        Infeasible: no case has a plan.
    """
    devices = [each for each in client.devices() if each.state == "ready"]
    if not devices:
        raise Unavailable(cause="no device is ready", cure="See `imbrex status`")
    rounds = Rounds(client, public_name(model), body)
    cases = _cases(asked, len(devices), client, rounds.model)
    able, baselines = _measured(rounds, cases, asked.repeat, in_turns=in_turns)
    about = {
        "model": rounds.model,
        "url": client.url,
        "coordinator_version": client.version(),
        "repeat": asked.repeat,
        "warm_up": WARM_UP,
        "seed": asked.seed,
        "reference": f"{able[0].label} on {able[0].devices}",
        "single_device_latency_s": statistics.median(each.latency_s for each in baselines),
        "baseline_device": baselines[-1].device,
    }
    return Found(cases, about, [each.latency_s for each in baselines])


def _same(case: Case) -> bool:
    """Whether its answers equal the reference's within the tolerance of its wire."""
    error = case.comparison.max_rel_error
    return isfinite(error) if case.plan["wire"] != "exact" else error <= TOLERANCE


def question(model: str, seed: int) -> bytes:
    """Seeded tensors for the model, as a request's body."""
    with terminal.waiting(f"reading {model}"):
        return write_tensors(random_inputs(network_of(model).graph, seed))


def _cases(asked: Asked, there: int, client: Client, model: str) -> list[Case]:
    chosen = STRATEGIES if "all" in asked.strategies else asked.strategies
    counts = asked.counts or [there]
    if counts[-1] > there:
        raise BadRequest(
            cause=f"{counts[-1]} devices were requested, but {there} are ready",
            cure="Request fewer, or see in `imbrex status` why some are missing",
        )
    cases = [
        Case(f"{name} {wire}".strip(), count, Choice.of(name, count, wire))
        for count in counts
        for name in chosen
        for wire in asked.wires
    ]
    if asked.plan is not None:
        choice = client.send_plan(model, read_file(asked.plan))
        used = len(client.plan(model, choice).devices_used)
        cases.append(Case(asked.plan.name, used, choice))
    return cases


def _measured(
    rounds: Rounds, cases: Sequence[Case], repeat: int, *, in_turns: bool
) -> tuple[list[Case], list[Alone]]:
    """Measures all cases; returns those that have a plan, and the baselines."""
    baselines: list[Alone] = []
    with terminal.progress_bar() as bar:
        task = bar.add_task("", total=len(cases) * (repeat + 1))

        def step(what: str) -> None:
            bar.update(task, description=what, advance=1)

        rounds.warm_up(cases, step)
        able = [case for case in cases if not case.reason]
        if not able:
            raise Infeasible(
                cause=f"nothing can be measured: {cases[0].label}: {cases[0].reason}",
                cure="Find strategies that work with `imbrex simulate`",
            )
        for case in rounds.measure(able, repeat):
            step(f"{case.label} on {case.devices}")
            if case is able[-1] and (in_turns or len(case.samples) == repeat):
                bar.update(task, description="the whole model on the best device alone")
                baselines.append(rounds.client.baseline(rounds.model))
    return able, baselines


def result(case: Case, about: Mapping[str, Any], called: Mapping[str, str]) -> dict[str, Any]:
    """A case as JSON, or why it has none; `called` has the names of devices."""
    begin = {"strategy": case.label, "devices": case.devices}
    if case.reason:
        return {**begin, "reason": case.reason}
    return {
        **begin,
        "devices_used": [called.get(each, each) for each in case.plan["devices_used"]],
        "plan_version": case.plan["version"],
        "latency_s": case.latency_s,
        "predicted_latency_s": case.predicted_s,
        "prediction_error": round(case.predicted_s / case.latency_s - 1, 4),
        "speedup": round(about["single_device_latency_s"] / case.latency_s, 4),
        "bytes": dict(case.samples[-1].bytes),
        "planned_bytes": case.plan["bytes"],
        "max_abs_error": case.comparison.max_abs_error,
        "max_rel_error": case.comparison.max_rel_error,
        "samples_s": [each.latency_s for each in case.samples],
        "plan_versions": [each.plan_version for each in case.samples],
    }


def _csv(cases: Sequence[Case]) -> None:
    """A line for each sample, in the order of measurement."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    head = ("round", "strategy", "devices", "latency_s", "predicted_latency_s", "plan_version")
    out.writerow((*head, "scatter", "gather", "halo", "max_rel_error"))
    rows = [(sample.round, index) for index, case in enumerate(cases) for sample in case.samples]
    for number, index in sorted(rows):
        case = cases[index]
        one = case.samples[number]
        moved = (one.bytes[way] for way in ("scatter", "gather", "halo"))
        first = (number, case.label, case.devices, one.latency_s, one.predicted_s)
        out.writerow((*first, one.plan_version, *moved, one.comparison.max_rel_error))


def show(found: Found) -> None:
    """The table for people."""
    console, cases, about = terminal.out(), found.cases, found.about
    alone = terminal.duration(about["single_device_latency_s"])
    console.print(
        f"{about['model']} at {about['url']}: medians of {about['repeat']} interleaved rounds; "
        f"the whole model on {about['baseline_device']} alone, in plain onnxruntime: {alone}"
    )
    made = terminal.table(
        *("strategy", ">of", ">measured", "", ">fastest", ">slowest", ">predicted", ">error"),
        *(">speed-up", ">moved", ">planned", ">difference"),
    )
    slowest = max(case.latency_s for case in cases if case.samples)
    for case in cases:
        if case.reason:
            made.add_row(case.label, str(case.devices), "-", Text(case.reason, "yellow"))
            continue
        times = [each.latency_s for each in case.samples]
        error = case.comparison.max_rel_error
        made.add_row(
            case.label,
            str(case.devices),
            terminal.duration(case.latency_s),
            terminal.bar(case.latency_s / slowest, BAR),
            terminal.duration(min(times)),
            terminal.duration(max(times)),
            terminal.duration(case.predicted_s),
            f"{case.predicted_s / case.latency_s - 1:+.0%}",
            f"{about['single_device_latency_s'] / case.latency_s:.2f}",
            terminal.size(sum(case.samples[-1].bytes.values())),
            terminal.size(sum(case.plan["bytes"].values())),
            Text(f"{error:.2g}", "green" if error <= TOLERANCE else "red"),
        )
    console.print(made)
    console.print(f"difference: the largest of any answer from that of {about['reference']}")
