"""How much sooner kernels compute with packed weights, with subnormal numbers taken as zero, and
with additions as part of convolutions: CPU time of one thread, in turns in one run.

    python -m benchmarks.kernels [--networks resnet50,FILE.onnx] [--rounds 7] [--json]

`single`'s and `auto`'s plans of each network for so many Raspberry Pi 4s are cut, and four sessions
of each task run in turns: as workers compute; with weights that each run packs anew; with subnormal
numbers; and with additions apart, as onnxruntime computes them if it does not know which sizes are
equal. The fastest run of each counts, and the device whose tasks take longest.
`NAME-int8` is a network in eight bits, calibrated with random pictures.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.int8 import quantised
from benchmarks.report import command_line, emit
from coordinator.planning.planners.auto import auto
from coordinator.planning.planners.single import single
from coordinator.tasks.plan import Plan
from coordinator.tasks.task_graph import compile_plan
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import load_kind
from models.catalogue import catalogue
from models.catalogue.loading import network_of
from models.cut.program import BlobSource, Program
from models.cut.units import Network
from worker.engines.ort_session import BLOCKED_LAYOUT, make_session, options
from worker.engines.processor import settle_thread
from worker.programs.graphs import embed_weight

NETWORKS = "resnet50,resnet50-int8"
KIND = "pi4-gbe"
ROUNDS = 7
INT8 = "-int8"

PLANNERS = (single, auto)

Feeds: TypeAlias = Mapping[str, np.ndarray]
Seconds: TypeAlias = dict[str, float]


@dataclass(frozen=True, slots=True)
class Way:
    """Whether weights are packed, subnormal numbers are zero, and equal sizes are known."""

    packed: bool = True
    settled: bool = True
    known: bool = True


OTHERS = {
    "unpacked": Way(packed=False),
    "subnormal": Way(settled=False),
    "apart": Way(known=False),
}
WAYS = {"packed": Way(), **OTHERS}


class Timer:
    """Times runs in two threads: one as workers have them, one that computes with subnormals."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._settled = ThreadPoolExecutor(1, initializer=settle_thread, initargs=(0,))
        self._plain = ThreadPoolExecutor(1)

    def seconds(self, model: bytes, feeds: Feeds) -> Seconds:
        """The fastest run in each way."""
        sessions = {name: _session(model, way) for name, way in WAYS.items()}
        found = dict.fromkeys(WAYS, float("inf"))
        for _ in range(self._rounds):
            for name, way in WAYS.items():
                pool = self._settled if way.settled else self._plain
                found[name] = min(found[name], pool.submit(_run_s, sessions[name], feeds).result())
        return found


def _run_s(session: ort.InferenceSession, feeds: Feeds) -> float:
    began_s = time.thread_time()
    session.run(None, dict(feeds))
    return time.thread_time() - began_s


def _session(model: bytes, way: Way) -> ort.InferenceSession:
    chosen = options(Path(), 1, optimise=True, shared=False)
    chosen.add_session_config_entry("session.disable_prepacking", str(int(not way.packed)))
    if not way.known:
        proto = onnx.ModelProto.FromString(model)
        proto.graph.ClearField("value_info")
        model = proto.SerializeToString()
    return make_session(model, chosen, (BLOCKED_LAYOUT,))


def measure(name: str, devices: int, timer: Timer) -> dict[str, Any]:
    """Of one network: milliseconds on one device, and of the slowest of several, in each way."""
    with tempfile.TemporaryDirectory() as folder:
        network = network_of(_loaded(name, Path(folder)))
        cluster = cluster_of(load_kind(KIND), devices)
        alone, together = (_device_s(network, plan(network, cluster), timer) for plan in PLANNERS)
    return {
        "network": Path(name).stem,
        "alone": _row(alone),
        "together": _row(together),
        "slower_on_tiles": {
            way: round(together[way] * devices / alone[way], 2) for way in ("packed", "unpacked")
        },
    }


def _loaded(name: str, folder: Path) -> catalogue.LoadedModel:
    if not name.endswith(INT8):
        return catalogue.load(name)
    path = folder / f"{name}.onnx"
    proto = catalogue.load(name.removesuffix(INT8)).proto
    onnx.save(quantised(proto, folder, signed=False), path)
    return catalogue.load(path)


def _device_s(network: Network, plan: Plan, timer: Timer) -> Seconds:
    """Seconds of the tasks of the device that takes longest, in each way."""
    blobs, random = BlobSource(), np.random.default_rng(0)
    graph = compile_plan(plan, network, blobs)
    found: dict[str, Seconds] = {}
    for task in graph.tasks:
        feeds = {
            entry.tensor: _values(random, entry.box.shape, graph.tensors[entry.tensor].dtype)
            for entry in task.inputs
        }
        seconds = timer.seconds(_model(graph.programs[task.program], blobs), feeds)
        device = found.setdefault(task.device, dict.fromkeys(WAYS, 0.0))
        for way in WAYS:
            device[way] += seconds[way]
    return {way: max(device[way] for device in found.values()) for way in WAYS}


def _model(program: Program, blobs: BlobSource) -> bytes:
    model = onnx.ModelProto.FromString(program.graph)
    for ref in program.weights:
        embed_weight(model, ref, bytes(blobs.bytes_of(ref.sha256)))
    return model.SerializeToString()


def _values(random: np.random.Generator, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    if np.issubdtype(dtype, np.floating):
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 128, shape).astype(dtype)


def _row(seconds: Seconds) -> dict[str, float]:
    row = {f"{way}_ms": round(1e3 * seconds[way], 2) for way in WAYS}
    for way in OTHERS:
        row[f"{way}_over_packed"] = round(seconds[way] / seconds["packed"], 2)
    return row


def _line(row: dict[str, Any]) -> str:
    return f"{row['network']}: " + "; ".join(
        f"{where} {row[where]['packed_ms']:.1f} ms, {row[where]['unpacked_over_packed']:.2f} times "
        f"that unpacked, {row[where]['subnormal_over_packed']:.2f} with subnormals, "
        f"{row[where]['apart_over_packed']:.2f} with additions apart"
        for where in ("alone", "together")
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = command_line(__doc__)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="more where others compute, too")
    given = parser.parse_args(arguments)
    timer, rows = Timer(given.rounds), []
    for name in given.networks.split(","):
        rows.append(measure(name, given.devices, timer))
        print(_line(rows[-1]), file=sys.stderr, flush=True)
    emit({"kind": KIND, "devices": given.devices, "rows": rows}, given, "")


if __name__ == "__main__":
    main()
