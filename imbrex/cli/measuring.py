"""Strategies measured on a running cluster, in turns with the whole model on one device."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from coordinator.answers import PlanChoice
from coordinator.library.naming import public_name
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.serving.common.tensors import write_tensors
from coordinator.serving.v1.answers import Alone
from imbrex import terminal
from imbrex.calls import read_file
from imbrex.cli.rounds import WARM_UP, PlanSamples, Rounds
from imbrex.client import Client
from models.catalogue import catalogue, loading
from models.check.agreement import both_answers
from models.check.check import TOLERANCE
from models.check.tolerance import is_quantised
from models.run.reference import random_inputs
from models.tensors.arrays import Arrays
from models.vision.pixels import as_values
from protos.errors import BadRequest, Infeasible, Unavailable


@dataclass(frozen=True, slots=True)
class MeasureOptions:
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
    plot: Path | None = None


@dataclass(frozen=True, slots=True)
class Posed:
    """A request's body, and the answers that are right besides the first one: those of the whole
    model, if it is quantised (`models.check.agreement`).
    """

    body: bytes
    right: Sequence[Arrays] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured of one model; `alone_s` is the whole model on the best device, once in each
    round.
    """

    cases: Sequence[PlanSamples]
    about: Mapping[str, Any]
    alone_s: Sequence[float]

    @property
    def same(self) -> bool:
        """Whether all answers equal the reference's within what their wire and the model's
        precision allow.
        """
        is_exact = self.about["precision"] == "exact"
        return all(
            case.comparison.max_rel_error <= TOLERANCE
            if is_exact and case.plan["wire"] == "exact"
            else isfinite(case.comparison.max_rel_error)
            for case in self.cases
            if not case.reason
        )


def measure(client: Client, model: str, posed: Posed, asked: MeasureOptions) -> Found:
    """Every case and, in each round, the whole model on the best device.

    Raises:
        Unavailable: no device is ready.
        NotFound: an unknown strategy.
        Infeasible: no case has a plan.
    """
    devices = [device for device in client.devices() if device.state == "ready"]
    if not devices:
        raise Unavailable(cause="no device is ready", cure="See `imbrex status`")
    rounds = Rounds(client, public_name(model), posed.body, others=posed.right)
    cases = _cases(asked, len(devices), client, rounds.model)
    able, baselines = _measured(rounds, cases, asked.repeat)
    precisions = {model.name: model.precision for model in client.models()}
    about = {
        "model": rounds.model,
        "url": client.shown,
        "coordinator_version": client.version(),
        "repeat": asked.repeat,
        "warm_up": WARM_UP,
        "seed": asked.seed,
        "reference": f"{able[0].label} on {able[0].devices}",
        "single_device_latency_s": statistics.median(baseline.latency_s for baseline in baselines),
        "baseline_device": baselines[-1].device,
        "precision": precisions.get(rounds.model, "exact"),
    }
    return Found(cases, about, [baseline.latency_s for baseline in baselines])


def question(model: str, seed: int) -> Posed:
    """Seeded tensors for the model."""
    with terminal.waiting(f"reading {model}"):
        loaded = catalogue.load(model)
        graph = loading.network_of(loaded).graph
        feeds = random_inputs(graph, seed)
        right = (
            both_answers(loaded.proto, as_values(graph, feeds), threads=0)
            if is_quantised(graph)
            else ()
        )
        return Posed(write_tensors(feeds), right)


def _cases(asked: MeasureOptions, there: int, client: Client, model: str) -> list[PlanSamples]:
    chosen = STRATEGIES if "all" in asked.strategies else asked.strategies
    counts = asked.counts or [there]
    if counts[-1] > there:
        raise BadRequest(
            cause=f"{counts[-1]} devices were requested, but {there} are ready",
            cure="Request fewer, or see in `imbrex status` why some are missing",
        )
    cases = [
        PlanSamples(f"{name} {wire}".strip(), count, PlanChoice.of(name, count, wire))
        for count in counts
        for name in chosen
        for wire in asked.wires
    ]
    if asked.plan is not None:
        choice = client.send_plan(model, read_file(asked.plan))
        used = len(client.plan(model, choice).devices_used)
        cases.append(PlanSamples(asked.plan.name, used, choice))
    return cases


def _measured(
    rounds: Rounds, cases: Sequence[PlanSamples], repeat: int
) -> tuple[list[PlanSamples], list[Alone]]:
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
            if case is able[-1]:
                bar.update(task, description="the whole model on the best device alone")
                baselines.append(rounds.client.baseline(rounds.model))
    return able, baselines
