"""OpenVINO with a program compiled for one height, and with one compiled for every height: times in
turn in one run, how long compiling takes, and the difference of the results.

    python -m benchmarks.heights [--only resnet50,digits] [--threads N] [--json] [-o FILE]

The program is the network's upper half: the input rows that the upper half of its maps need, as the
first of two strips has it.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from benchmarks.report import command_line, emit
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of
from models.cut.cutter import cut
from models.cut.program import BlobSource
from models.run.reference import compare, random_inputs
from models.tensors.boxes import Box, Span
from worker.engines.base import Place
from worker.engines.openvino import OpenVino
from worker.programs.store import BlobStore

NETWORKS = ("digits", "vgg16-conv", "resnet18", "resnet50", "yolov2", "mobilenetv2")
ROUNDS = 15
# Rounds of slow networks end after this long; there are three at least.
MOST_S = 20.0
_ROWS = 2


@contextmanager
def _upper_half(name: str, threads: int) -> Iterator[tuple[Any, dict[str, np.ndarray]]]:
    """The first block of a network up to its smallest map of even height, for the upper half of
    that map: what `OpenVino` has read, and its inputs.
    """
    network = network_of(load(name))
    graph, blobs = network.graph, BlobSource()
    stop = max(
        height
        for height in range(1, len(network.units) + 1)
        for (output,) in [network.outputs(0, height)[:1]]
        if len(network.outputs(0, height)) == 1
        and len(graph.shape(output)) == 4
        and graph.shape(output)[_ROWS] % 2 == 0
    )
    (output,) = network.outputs(0, stop)
    half = Span(0, graph.shape(output)[_ROWS] // 2)
    nodes = [node for unit in network.units[:stop] for node in unit.nodes]
    piece = cut(graph, nodes, {output: Box.whole(graph.shape(output)).replace(_ROWS, half)}, blobs)
    feeds = random_inputs(graph)
    with tempfile.TemporaryDirectory() as folder:
        store = BlobStore(Path(folder), 1 << 40)
        for ref in piece.program.weights:
            store.path(ref.sha256).write_bytes(blobs.bytes_of(ref.sha256))
        engine = OpenVino(Place(Path(folder) / "programs", store, threads))
        engine.prepare(piece.program)
        yield (
            engine.load(piece.program.sha256),
            {tensor: feeds[tensor][box.slices()].copy() for tensor, box in piece.inputs.items()},
        )


def measure(name: str, threads: int) -> dict[str, Any]:
    """One network: milliseconds with a fixed and with an open height."""
    with _upper_half(name, threads) as (read, feeds):
        arrays = [feeds[name] for name in read.inputs]
        fixed = tuple(array.shape for array in arrays)
        heights = tuple((*shape[:_ROWS], -1, *shape[_ROWS + 1 :]) for shape in fixed)
        compiled, compile_s = [], []
        for shapes in (fixed, heights):
            began_s = time.perf_counter()
            compiled.append(read.compile(shapes).create_infer_request())
            compile_s.append(time.perf_counter() - began_s)
        seconds: list[list[float]] = [[], []]
        results: list[dict[str, np.ndarray]] = [{}, {}]
        until = time.monotonic() + MOST_S
        for number in range(ROUNDS):
            if number >= 3 and time.monotonic() > until:
                break
            for side, request in enumerate(compiled):
                began_s = time.perf_counter()
                made = request.infer(dict(enumerate(arrays)), share_inputs=True)
                seconds[side].append(time.perf_counter() - began_s)
                results[side] = {f"{place}": made[place] for place in range(len(read.outputs))}
    fixed_s, open_s = map(statistics.median, seconds)
    return {
        "network": name,
        "input": list(fixed[0]),
        "fixed_ms": round(1e3 * fixed_s, 3),
        "open_ms": round(1e3 * open_s, 3),
        "ratio": round(open_s / fixed_s, 3),
        "compile_fixed_s": round(compile_s[0], 3),
        "compile_open_s": round(compile_s[1], 3),
        "difference": compare(results[1], results[0]).max_rel_error,
    }


def _text(row: dict[str, Any]) -> str:
    return (
        "{network:14} {fixed_ms:9.2f} ms at one height, {open_ms:9.2f} ms at any: {ratio:.2f} "
        "times; compiled in {compile_fixed_s:.2f} and {compile_open_s:.2f} s"
    ).format_map(row)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures; fails if a result differs."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default=",".join(NETWORKS), metavar="NAME,...", help="networks")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the engine"
    )
    chosen = parser.parse_args(arguments)
    rows = []
    for name in chosen.only.split(","):
        rows.append(measure(name, chosen.threads))
        print(_text(rows[-1]), file=sys.stderr)
    result = {"openvino": ov.__version__, "threads": chosen.threads, "networks": rows}
    emit(result, chosen, "\n".join(map(_text, rows)))
    return int(any(row["difference"] > 1e-5 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
