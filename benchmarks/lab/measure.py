"""One model in a lab: the baseline and every strategy in turns, each answer compared."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.lab.cluster import Lab, Say
from benchmarks.lab.pictures import installed, short_name
from benchmarks.lab.where import where
from coordinator.answers import PlanChoice
from coordinator.devices.programs import Programs
from coordinator.library.loaded import Loaded
from coordinator.library.loaded import load as load_whole
from coordinator.measuring.baseline import ProgramTimes, halves_on, measure_request, measured_alone
from coordinator.plans.named import strategy
from coordinator.serving.common.tensors import write_tensors
from imbrex.calls import plain
from imbrex.cli.rounds import WARM_UP, PlanSamples, Rounds, RoundSample
from imbrex.demo.emulation.whole_maps import maps_of, write_maps
from models.catalogue import catalogue
from models.cut.cutter import CutTile
from models.cut.program import BlobSource
from models.run.reference import WholeModel, random_inputs
from models.vision.pixels import as_values
from protos.rpc.worker_client import WorkerClient
from protos.wire.facts import ONNXRUNTIME

# What the coordinator had found out about each device when it planned.
BELIEVED = ("name", "gflops", "mbps", "correction")
WAYS = ("scatter", "gather", "halo")


@dataclass(frozen=True, slots=True)
class Question:
    """A model of the catalogue, its seeded input and the whole model's answer."""

    name: str
    loaded: Loaded = field(repr=False)
    body: bytes = field(repr=False)
    expected: dict[str, np.ndarray] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Seen:
    """One request: its sample, the coordinator's CPU seconds, the share of this machine's cores
    that were busy, packets that queues dropped, and its trace.
    """

    sample: RoundSample
    cpu_s: float
    busy_share: float
    dropped: int
    trace: Mapping[str, Any] = field(repr=False)


def ask(lab: Lab, model: str) -> Question:
    """Loads a model of the catalogue or an .onnx file, one that takes a picture if it can, and runs
    it whole, here.
    """
    name = short_name(model)
    path = installed(model, lab.models)
    loaded = load_whole(path, name)
    graph = loaded.served.network.graph
    write_maps(lab.turns, name, maps_of(graph))
    feeds = random_inputs(graph)
    expected = WholeModel(catalogue.load(path).proto, threads=0).run(as_values(graph, feeds))
    return Question(name, loaded, write_tensors(feeds), expected)


def chosen(name: str) -> PlanChoice:
    """A strategy by its name, with a wire or `boxes` after a plus: `halo+fp16`.

    Raises:
        NotFound: there is no such strategy.
    """
    strategy_name, _, wire = name.partition("+")
    strategy(strategy_name)
    return PlanChoice.of(strategy_name, None, wire)


def steps(strategies: Sequence[str], repeat: int) -> int:
    """How often `measure` says something of one model."""
    return len(strategies) + repeat * (len(strategies) + 1)


def measure(
    lab: Lab, question: Question, strategies: Sequence[str], repeat: int, say: Say
) -> dict[str, Any]:
    """Rounds of the baseline and each strategy, after every plan is warm: a b c a b c."""
    rounds = Rounds(lab.client, question.name, question.body, question.expected)
    boxes = question.loaded.served.selections
    cases = [
        PlanSamples(
            name, lab.devices, chosen(name), selections=boxes if name.endswith("+boxes") else {}
        )
        for name in strategies
    ]
    rounds.warm_up(cases, say)
    alone_s(lab, question, WARM_UP)
    able = [case for case in cases if not case.reason]
    seen: dict[str, list[Seen]] = {case.label: [] for case in able}
    baselines: list[Mapping[str, float]] = []
    coordinator = psutil.Process(lab.coordinator.process.pid)
    for number in range(1, repeat + 1):
        turn = f"{question.name}, round {number}"
        say(f"{turn}: the whole model on one device")
        baselines.append(seconds_alone(lab, question))
        before_s, dropped = _cpu_s(coordinator), lab.network.dropped()
        psutil.cpu_percent()
        for case in rounds.measure(able, 1):
            busy, spent_s = psutil.cpu_percent() / 100, _cpu_s(coordinator) - before_s
            lost = lab.network.dropped() - dropped
            sample = case.samples[-1]
            trace = plain(lab.client.trace(sample.request_id))
            seen[case.label].append(Seen(sample, spent_s, busy, lost, trace))
            say(f"{turn}: {case.label} {sample.latency_s:.3f} s")
            before_s, dropped = _cpu_s(coordinator), lab.network.dropped()
            psutil.cpu_percent()
    # How many boxes a picture has is not planned.
    exact = ("scatter", "halo") if boxes else WAYS
    by_engine = {
        engine: [round(seconds[engine], 4) for seconds in baselines if engine in seconds]
        for engine in baselines[0]
    }
    engine = min(by_engine, key=lambda name: statistics.median(by_engine[name]))
    baseline_s = statistics.median(by_engine[engine])
    return {
        "baseline": {
            "latency_s": round(baseline_s, 4),
            "samples_s": by_engine[engine],
            "threads": 1,
            "engine": engine,
            "onnxruntime_s": round(statistics.median(by_engine[ONNXRUNTIME]), 4),
        },
        "strategies": {
            case.label: {"reason": case.reason}
            if case.reason
            else _result(case, baseline_s, seen[case.label], exact)
            for case in cases
        },
        "believed": [
            {key: device[key] for key in BELIEVED} for device in plain(lab.client.devices())
        ],
    }


def _result(
    case: PlanSamples, baseline_s: float, seen: Sequence[Seen], exact: Sequence[str]
) -> dict[str, Any]:
    # The request whose time is the median stands for the others.
    middle = sorted(seen, key=lambda each: each.sample.latency_s)[len(seen) // 2]
    moved = {way: middle.sample.bytes[way] for way in WAYS}
    planned = {way: case.plan["bytes"][way] for way in WAYS}
    return {
        "latency_s": case.latency_s,
        "speedup": round(baseline_s / case.latency_s, 3),
        "predicted_latency_s": round(case.predicted_s, 4),
        "prediction_error": round(case.predicted_s / case.latency_s - 1, 4),
        "samples_s": [sample.latency_s for sample in case.samples],
        "devices_used": len(case.plan["devices_used"]),
        "blocks": len(case.plan["blocks"]),
        "tasks": sum(len(block["tiles"]) for block in case.plan["blocks"]),
        "redundant_flop_share": round(case.plan["redundant_flop"] / case.plan["total_flop"], 4),
        "bytes": moved,
        "planned_bytes": planned,
        "bytes_error": round(
            sum(moved[way] for way in exact) / max(1, sum(planned[way] for way in exact)) - 1, 4
        ),
        "max_rel_error": case.comparison.max_rel_error,
        "coordinator_cpu_ms": round(statistics.median(request.cpu_s for request in seen) * 1e3, 1),
        "machine_busy_share": round(statistics.median(request.busy_share for request in seen), 3),
        "packets_dropped": [request.dropped for request in seen],
        "where_s": where(middle.trace, case.plan, baseline_s).json(),
    }


def alone_s(lab: Lab, question: Question, runs: int = 1) -> float:
    """Seconds of the whole, unsplit model on the fastest device, by its fastest engine; the median
    of so many runs.
    """
    return min(seconds_alone(lab, question, runs).values())


def seconds_alone(lab: Lab, question: Question, runs: int = 1) -> Mapping[str, float]:
    """The same by each of its engines that takes the whole model, and by two, each for a half."""
    return asyncio.run(_alone(lab, question.loaded, runs))


async def _alone(lab: Lab, loaded: Loaded, runs: int) -> Mapping[str, float]:
    async with WorkerClient(lab.addresses[0], lab.caller) as client:

        async def measured(tile: CutTile, blobs: BlobSource) -> ProgramTimes:
            await Programs(client).ensure([tile.program], blobs)
            return ProgramTimes.of(
                await client.measure(measure_request(tile, loaded, repeats=runs))
            )

        return (await measured_alone(loaded, halves_on(lab.device, loaded), measured)).seconds


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
