"""Whole networks by each engine of this machine, against onnxruntime: times in turn in one run, and
the difference of the results. `best` is what a worker with `engine = auto` would compute with.

    python -m benchmarks.engines [--only resnet50,digits] [--precision fp16] [--threads N]
                                 [--exported] [--json] [-o FILE]
    python -m benchmarks.engines --as-on-arm [--json] [-o FILE] [FILE.onnx ...]

With `--as-on-arm` networks are computed in the blocks of a plan for four Pi 4s
(`engine_blocks`), of these files or some of the catalogue. `--exported` adds those that
`benchmarks.exports` makes. With another precision than `exact`, engines may compute less exactly;
onnxruntime does not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import engine_blocks
from benchmarks.exports.files import exported
from benchmarks.report import command_line, emit
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of
from models.check.tolerance import of_engine
from models.cut.cutter import cut
from models.cut.program import BlobSource, Program
from models.graph.graph import Graph
from models.run.reference import compare, random_inputs
from models.tensors.boxes import Box
from models.tensors.precision import WIRES, Precision
from protos.errors import ImbrexError
from worker.engines.base import Place, Runnable
from worker.engines.pick import GAIN
from worker.engines.registry import DEFAULT, candidates, factory_of
from worker.programs.store import BlobStore

Arrays = Mapping[str, np.ndarray]

NETWORKS = (
    *("digits", "lenet5", "alexnet", "vgg16", "vgg16-conv", "googlenet", "inceptionv3"),
    *("resnet18", "resnet50", "densenet121", "squeezenet", "mobilenetv2", "mobilenetv3"),
    *("shufflenetv2", "efficientnet-lite0", "convnext-tiny", "unet", "deeplabv3"),
    *("yolov2", "yolov3-tiny", "yolov8n"),
)
EXPORTED = (
    *("yolo11n", "yolo26n", "rtdetr-l", "vit_b_16.script", "deit_tiny.script", "swin_t.script"),
    *("repvit_m0_9.script", "mobilenetv4_conv_small.script", "fastvit_t8.script"),
    *("efficientvit_b0.script", "edgenext.script", "convnextv2_atto.script"),
    *("levit_128.script", "mobilevit.script", "lraspp.script"),
)
# An engine is never to be slower than this share of onnxruntime's speed.
LEAST = 0.97
ROUNDS = 9
# Rounds of slow networks end after this long; there are three at least.
MOST_S = 20.0


@contextmanager
def _whole(
    name: str, threads: int, precision: Precision
) -> Iterator[tuple[Program, Place, Arrays]]:
    """The whole network as one program, its weights in a store, and what it reads."""
    graph, blobs = replace(_graph(name), precision=precision), BlobSource()
    demand = {name: Box.whole(graph.shape(name)) for name in graph.results}
    piece = cut(graph, graph.nodes, demand, blobs, static=True)
    program, feeds = piece.program, random_inputs(graph)
    read = {name: feeds[name][box.slices()] for name, box in piece.inputs.items()}
    with tempfile.TemporaryDirectory() as folder:
        store = BlobStore(Path(folder), 1 << 40)
        for ref in program.weights:
            store.path(ref.sha256).write_bytes(blobs.bytes_of(ref.sha256))
        yield program, Place(Path(folder) / "programs", store, threads), read


def _graph(name: str) -> Graph:
    """Of a network of the catalogue, or an exported one."""
    return network_of(load(str(exported([name])[0]) if name in EXPORTED else name)).graph


def measure(name: str, threads: int, precision: Precision) -> dict[str, Any]:
    """One network: seconds, speed-ups and differences by engine."""
    graph = _graph(name)
    found: dict[str, Any] = {"network": name, "engines": {}, "best": DEFAULT, "speedup": 1.0}
    with _whole(name, threads, precision) as (program, place, feeds):
        reference = _loaded(DEFAULT, program, place)
        shapes = {name: graph.shape(name) for name in graph.results}
        expected = reference.bound(feeds, shapes).compute()
        most = GAIN
        for engine in candidates():
            try:
                runnable = _loaded(engine, program, place)
                made = runnable.bound(feeds, shapes).compute()
            except ImbrexError as error:
                found["engines"][engine] = {"refused": str(error)}
                continue
            difference = compare(made, expected).max_rel_error
            # Chosen in one series, reported from another: a choice by chance would show.
            first = _in_turn((reference, runnable), feeds, shapes)
            seconds = _in_turn((reference, runnable), feeds, shapes)
            speedup = statistics.median(seconds[0]) / statistics.median(seconds[1])
            gain = min(first[0]) / min(first[1])
            found["engines"][engine] = {
                "onnxruntime_ms": 1e3 * statistics.median(seconds[0]),
                "ms": 1e3 * statistics.median(seconds[1]),
                "speedup": speedup,
                "difference": difference,
            }
            if difference <= of_engine(precision) and gain > most:
                most = gain
                found |= {"best": engine, "speedup": speedup}
    return found


def _loaded(name: str, program: Program, place: Place) -> Runnable:
    engine = factory_of(name)(place)
    engine.prepare(program)
    loaded = engine.load(program.sha256)
    assert loaded is not None, "it was just prepared"
    return loaded


def _in_turn(
    runnables: Sequence[Runnable],
    feeds: Arrays,
    shapes: Mapping[str, tuple[int, ...]],
) -> list[list[float]]:
    seconds: list[list[float]] = [[] for _ in runnables]
    until = time.monotonic() + MOST_S
    for number in range(ROUNDS):
        if number >= 3 and time.monotonic() > until:
            break
        for runnable, taken in zip(runnables, seconds, strict=True):
            ready = runnable.bound(feeds, shapes)
            began_s = time.perf_counter()
            ready.compute()
            taken.append(time.perf_counter() - began_s)
    return seconds


def _text(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in rows:
        listed = ", ".join(
            told["refused"]
            if "refused" in told
            else f"{name} {told['ms']:.1f} ms ({told['speedup']:.2f}x, {told['difference']:.1e})"
            for name, told in row["engines"].items()
        )
        lines.append(f"{row['network']:20} best {row['best']} ({row['speedup']:.2f}x): {listed}")
    return "\n".join(lines)


def table(rows: Sequence[Mapping[str, Any]], precision: Precision = "exact") -> str:
    """Markdown: a row for each network."""
    lines = [
        "| network | onnxruntime | OpenVINO | difference | with `auto` |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        told = row["engines"]["openvino"]
        if "refused" in told:
            cells = ["", "refused", "", "1"]
        else:
            is_right = told["difference"] <= of_engine(precision)
            times = (f"{told[key]:.3g} ms" for key in ("onnxruntime_ms", "ms"))
            gain = f"{row['speedup']:.2f}" if row["best"] != DEFAULT else "1"
            cells = [*times, f"{told['difference']:.0e}" + ("" if is_right else ", refused"), gain]
        lines.append(f"| `{row['network'].removesuffix('.script')}` | {' | '.join(cells)} |")
    return "\n".join(["", *lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures; returns 1 if a best engine is slower than onnxruntime."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default=",".join(NETWORKS), metavar="NAME,...", help="networks")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of each engine"
    )
    parser.add_argument("--precision", choices=WIRES, default="exact")
    parser.add_argument("--exported", action="store_true", help="exported networks, too")
    parser.add_argument(
        "--as-on-arm", action="store_true", help="in blocks, onnxruntime without blocked layout"
    )
    parser.add_argument("files", nargs="*", metavar="FILE.onnx")
    chosen = parser.parse_args(arguments)
    if chosen.as_on_arm:
        return _as_on_arm(chosen)
    rows = []
    for name in (*chosen.only.split(","), *(EXPORTED if chosen.exported else ())):
        rows.append(measure(name, chosen.threads, chosen.precision))
        print(_text(rows[-1:]), file=sys.stderr)
    emit(
        {"threads": chosen.threads, "precision": chosen.precision, "networks": rows},
        chosen,
        _text(rows),
    )
    return int(any(row["speedup"] < LEAST for row in rows))


def _as_on_arm(chosen: argparse.Namespace) -> int:
    networks = {}
    for name in chosen.files or engine_blocks.NETWORKS:
        source = str(exported([name])[0]) if name in EXPORTED else name
        networks[Path(name).stem] = engine_blocks.measure(source)
        print(engine_blocks.table(networks).splitlines()[-1], file=sys.stderr)
    emit({"networks": networks}, chosen, engine_blocks.table(networks))
    return int(any(row["ratio"] < LEAST for row in networks.values()))


if __name__ == "__main__":
    sys.exit(main())
