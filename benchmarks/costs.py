"""How well a profile predicts fused tiles of real networks, measured here in one thread.

    python -m benchmarks.costs [--networks vgg16-conv,FILE.onnx] [--json]

Profiles this machine as a worker would be profiled (medians of CPU time, so that other load does
little) and, interleaved with the samples, times random tiles of random blocks of the catalogue's
networks, which the profile never sees. Then both are compared.
"""

from __future__ import annotations

import platform
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.lab.pictures import short_name
from benchmarks.report import command_line, emit
from coordinator.costs.regression import DeviceProfile, RegressionCosts, errors
from coordinator.costs.sample_choice import Sampling
from models.catalogue import catalogue
from models.cut.cutter import cut
from models.cut.program import BlobSource, Program
from models.cut.tiles import MapTile, even_spans, map_size, tile_boxes
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from models.operators.geometry import extent
from models.operators.work import NodeWork, works
from models.tensors.boxes import Span
from protos.wire.facts import ONNXRUNTIME
from worker.engines.ort_session import BLOCKED_LAYOUT, make_session

NETWORKS = "vgg16-conv,yolov2,resnet50,digits"
TILES = 20
REPEATS = 5


@dataclass(frozen=True, slots=True)
class FusedTile:
    """A tile of a block of a real network."""

    network: str
    work: Sequence[NodeWork]
    program: Program
    inputs: Mapping[str, Sequence[int]]


Timed = list[tuple[FusedTile, float]]


def interleaved(names: Sequence[str], budget_s: float, seed: int) -> tuple[Sampling, Timed]:
    """All samples of this machine, and between them tiles of these networks."""
    sampling, blobs = Sampling(budget_s, seed), BlobSource()
    waiting = [tile for name in names for tile in random_tiles(name, seed, blobs)]
    random.Random(seed).shuffle(waiting)
    timed: Timed = []
    while (sample := sampling.next()) is not None:
        began = time.monotonic()
        inputs = {spec.tensor: spec.dims for spec in sample.what.inputs}
        seconds = run_s(sample.what.program, inputs, blobs)
        sampling.record(sample, {ONNXRUNTIME: seconds}, time.monotonic() - began)
        while len(timed) < sampling.progress * len(waiting):
            tile = waiting[len(timed)]
            timed.append((tile, run_s(tile.program, tile.inputs, blobs)))
    return sampling, timed


def run_s(
    program: Program,
    inputs: Mapping[str, Sequence[int]],
    blobs: BlobSource,
    *,
    as_on_arm: bool = False,
) -> float:
    """Median CPU seconds of one run; weights without a hash are random."""
    rng = np.random.default_rng(0)
    model = onnx.ModelProto.FromString(program.graph)
    for ref in program.weights:
        tensor = model.graph.initializer.add()
        tensor.name, tensor.data_type = ref.name, ref.data_type
        tensor.dims.extend(ref.dims)
        known = ref.sha256 in blobs
        values = rng.random(ref.dims, dtype=np.float32) - 0.5
        tensor.raw_data = bytes(blobs.bytes_of(ref.sha256)) if known else values.tobytes()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = make_session(
        model.SerializeToString(), options, (BLOCKED_LAYOUT,) if as_on_arm else ()
    )
    feeds = {name: rng.standard_normal(dims, dtype=np.float32) for name, dims in inputs.items()}
    session.run(None, feeds)
    seconds = []
    for _ in range(REPEATS):
        began = time.thread_time()
        session.run(None, feeds)
        seconds.append(time.thread_time() - began)
    return statistics.median(seconds)


def random_tiles(name: str, seed: int, blobs: BlobSource) -> list[FusedTile]:
    """Tiles of random blocks of a network of the catalogue or a file."""
    loaded, rng = catalogue.load(name), random.Random(seed)
    network = divide(load_graph(loaded.proto, short_name(name)))
    return [_random_tile(network, rng, blobs) for _ in range(TILES)]


def _random_tile(network: Network, rng: random.Random, blobs: BlobSource) -> FusedTile:
    marks = network.marks
    while True:
        first = rng.randrange(len(marks) - 1)
        last = min(len(marks) - 1, first + rng.choice((1, 1, 2, 3, 4, 6)))
        start, stop = marks[first], marks[last]
        if network.is_divisible(start, stop):
            break
    height, _ = map_size(network, start, stop)
    strips = [rows for rows in even_spans(height, rng.choice((1, 2, 3, 4, 8))) if len(rows)]
    return fused_tile(network, start, stop, rng.choice(strips), blobs)


def fused_tile(network: Network, start: int, stop: int, rows: Span, blobs: BlobSource) -> FusedTile:
    """So many rows of the block between two boundaries, as wide as its map."""
    _, width = map_size(network, start, stop)
    boxes = tile_boxes(network, start, stop, MapTile(rows, Span(0, width)))
    nodes = network.nodes(start, stop)
    piece = cut(network.graph, nodes, boxes, blobs, static=True)
    shapes = {name: box.shape for name, box in piece.inputs.items()}
    work = works(network.graph, nodes, extent(network.graph, nodes, boxes))
    return FusedTile(network.name, work, piece.program, shapes)


def compare(profile: DeviceProfile, timed: Timed) -> dict[str, dict[str, float]]:
    """MAPE and bias of fused tiles, per network and of all."""
    costs = RegressionCosts(profile)
    ratios = [(tile.network, costs.block_s(tile.work) / seconds) for tile, seconds in timed]
    names = dict.fromkeys(tile.network for tile, _ in timed)
    result = {name: _errors([r for of, r in ratios if of == name]) for name in names}
    return {**result, "all": _errors([ratio for _, ratio in ratios])}


def _errors(ratios: Sequence[float]) -> dict[str, float]:
    mape, bias = errors(np.array(ratios))
    median = statistics.median(abs(ratio - 1) for ratio in ratios)
    return {"mape": round(mape, 4), "median": round(median, 4), "bias": round(bias, 4)}


def measure(names: Sequence[str], budget_s: float, seed: int) -> dict[str, Any]:
    """Everything, as one object."""
    sampling, timed = interleaved(names, budget_s, seed)
    profile = sampling.profile({"machine": platform.machine()})
    return {
        "samples": len(sampling.measured),
        "spent_s": round(sampling.spent_s, 1),
        "compute_scale": round(profile.compute_scale, 4),
        "light_scale": round(profile.light_scale, 4),
        "layers": {
            kind: {"samples": fit.samples, "mape": round(fit.mape, 4), "bias": round(fit.bias, 4)}
            for kind, fit in profile.fits.items()
        },
        "blocks": {"mape": round(profile.block_mape, 4), "bias": round(profile.block_bias, 4)},
        "tiles": compare(profile, timed),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = command_line(__doc__)
    parser.add_argument("--networks", default=NETWORKS, help="names or files")
    parser.add_argument("--budget-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    result = measure(chosen.networks.split(","), chosen.budget_s, chosen.seed)
    lines = [f"{result['samples']} samples in {result['spent_s']} s"]
    for title in ("layers", "tiles"):
        for name, row in result[title].items():
            lines.append(f"{title[:-1]} {name}: MAPE {row['mape']:.1%}, bias {row['bias']:+.1%}")
    emit(result, chosen, "\n".join(lines))


if __name__ == "__main__":
    main()
