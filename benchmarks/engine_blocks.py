"""Networks in the blocks of a plan for four Pi 4s, each block by its fastest engine: CPU seconds of
one thread here, with onnxruntime as it computes on Arm, without its blocked layout.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.planning.planners.auto import auto
from coordinator.planning.planners.propose import propose
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import load_kind
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of
from models.check.tolerance import of_engine
from models.cut.cutter import CutTile, cut
from models.cut.program import BlobSource
from models.run.quantised_inputs import as_they_travel
from models.run.reference import WholeModel, answer, compare, random_inputs
from models.tensors.boxes import Box
from models.vision.pixels import as_values
from protos.errors import ImbrexError
from worker.engines.base import Engine, Place, Ready, Runnable
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.ort_session import BLOCKED_LAYOUT
from worker.engines.registry import DEFAULT, candidates, factory_of
from worker.programs.store import BlobStore

NETWORKS = (
    *("digits", "mobilenetv2", "resnet18", "resnet50", "vgg16-conv", "yolo11n", "yolov2"),
    "yolov8n",
)
KIND, DEVICES = "pi4-gbe", 4
ENGINES = ("ncnn",)
ROUNDS = 7
# Rounds of a slow block end after this long; there are three at least.
MOST_S = 3.0

Shapes = Mapping[str, tuple[int, ...] | None]


def measure(name: str) -> dict[str, Any]:
    """One network of the catalogue or a file: seconds by onnxruntime alone and with the best engine
    of each block, and the difference of that answer from the whole network's.
    """
    loaded = load(name)
    network = network_of(loaded)
    graph, blobs = network.graph, BlobSource()
    plan = propose(auto, network, cluster_of(load_kind(KIND), DEVICES))
    feeds = random_inputs(graph)
    tensors = dict(as_they_travel(graph, feeds))
    seconds = [0.0, 0.0]
    programs: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        engines = _engines(Path(folder))
        for block in plan.blocks:
            demand = {
                name: Box.whole(graph.shape(name))
                for name in network.outputs(block.start, block.stop)
            }
            piece = cut(graph, network.nodes(block.start, block.stop), demand, blobs)
            shapes: Shapes = {
                name: None if graph.tensors[name].is_dynamic else box.shape
                for name, box in piece.yields.items()
            }
            read = {name: tensors[name][box.slices()].copy() for name, box in piece.inputs.items()}
            _store(Path(folder), piece, blobs)
            best, (onnxruntime_s, best_s), outputs = _fastest(engines, piece, read, shapes)
            programs[best] += 1
            seconds = [seconds[0] + onnxruntime_s, seconds[1] + best_s]
            tensors |= outputs
    whole = WholeModel(loaded.proto, threads=0).run(as_values(graph, feeds))
    result = answer(graph.outputs, graph.joined, tensors, graph.ending)
    return {
        "onnxruntime_s": seconds[0],
        "best_s": seconds[1],
        "ratio": seconds[0] / seconds[1],
        "difference": compare(result, whole).max_rel_error,
        "programs": dict(sorted(programs.items())),
    }


def _engines(folder: Path) -> dict[str, Engine]:
    """onnxruntime as on Arm, and what the playbook installs beside it. OpenVINO has kernels of its
    own for x86-64, which say nothing of Arm.
    """
    store = BlobStore(folder, 1 << 40)
    engines: dict[str, Engine] = {
        DEFAULT: OnnxRuntime(Place(folder / DEFAULT, store, 1), (BLOCKED_LAYOUT,))
    }
    for name in {*ENGINES} & candidates().keys():
        engines[name] = factory_of(name)(Place(folder / name, store, 1))
    return engines


def _store(folder: Path, piece: CutTile, blobs: BlobSource) -> None:
    for ref in piece.program.weights:
        (folder / "blobs" / ref.sha256).write_bytes(blobs.bytes_of(ref.sha256))


def _fastest(
    engines: Mapping[str, Engine], piece: CutTile, read: Mapping[str, Any], shapes: Shapes
) -> tuple[str, tuple[float, float], dict[str, Any]]:
    """The fastest engine of those whose results agree with onnxruntime's, seconds of both, and its
    results.
    """
    runnables: dict[str, Runnable] = {}
    results: dict[str, dict[str, Any]] = {}
    for name, engine in engines.items():
        try:
            engine.prepare(piece.program)
            runnable = engine.load(piece.program.sha256)
            assert runnable is not None, "it was just prepared"
            outputs = runnable.bound(read, shapes).compute()
        except ImbrexError:
            continue
        expected = results.setdefault(DEFAULT, outputs)
        if compare(outputs, expected).max_rel_error <= of_engine("exact"):
            runnables[name], results[name] = runnable, outputs
    # Chosen in one series, reported from another: a choice by chance would show.
    first = _in_turn(runnables, read, shapes)
    best = min(first, key=lambda name: first[name])
    seconds = _in_turn({name: runnables[name] for name in (DEFAULT, best)}, read, shapes)
    return best, (seconds[DEFAULT], seconds[best]), results[best]


def _in_turn(
    runnables: Mapping[str, Runnable], read: Mapping[str, Any], shapes: Shapes
) -> dict[str, float]:
    """CPU seconds of the fastest run of each."""
    fastest = dict.fromkeys(runnables, float("inf"))
    until = time.monotonic() + MOST_S
    for number in range(ROUNDS):
        if number >= 3 and time.monotonic() > until:
            break
        for name, runnable in runnables.items():
            ready: Ready[Any] = runnable.bound(read, shapes)
            began_s = time.thread_time()
            ready.compute()
            fastest[name] = min(fastest[name], time.thread_time() - began_s)
    return fastest


def markdown(networks: Mapping[str, Mapping[str, Any]]) -> str:
    """The same as a table."""
    lines = ["| network | onnxruntime | best of each block | gain | difference | blocks by ncnn |"]
    lines.append("|---|---|---|---|---|---|")
    for name, row in networks.items():
        times = (f"{1e3 * row[key]:.3g} ms" for key in ("onnxruntime_s", "best_s"))
        count = f"{row['programs'].get('ncnn', 0)} of {sum(row['programs'].values())}"
        lines.append(
            f"| `{name}` | {' | '.join(times)} | {row['ratio']:.2f} | {row['difference']:.0e} "
            f"| {count} |"
        )
    return "\n".join(["", *lines, ""])


def table(networks: Mapping[str, Mapping[str, Any]]) -> str:
    """One line for each network."""
    return "\n".join(
        f"{name:20} {1e3 * row['onnxruntime_s']:8.1f} ms by onnxruntime, "
        f"{1e3 * row['best_s']:8.1f} ms by the best ({row['ratio']:.2f}x, "
        f"{row['difference']:.0e}): "
        + ", ".join(f"{count} by {engine}" for engine, count in row["programs"].items())
        for name, row in networks.items()
    )
