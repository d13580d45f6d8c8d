"""One task with all cores compared with a task per core, for fused tiles of real networks.

    python -m benchmarks.cores --json

Each tile runs whole, in one session with a thread for each core, and divided as in plans, each part
in a session with one thread, all at once. Both run by turns, so that other load matters little, and
their fastest runs count. `apart_over_together` below 1: a task per core is faster, including the
halos that it computes twice.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.report import command_line, emit
from coordinator.planning.planners.spread import parts
from models.catalogue import catalogue
from models.cut.cutter import cut
from models.cut.program import BlobSource
from models.cut.tiles import MapTile, grid, tile_boxes
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from worker.compute.cores import measured
from worker.engines.base import Place
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.ort_session import make_session, options
from worker.programs.graphs import embed_weight
from worker.programs.store import BlobStore

NETWORKS = ("vgg16-conv", "yolov2", "resnet50")
# Strips that a map is divided into, as for so many devices.
STRIPS = (1, 2, 4)

Run = tuple[ort.InferenceSession, Mapping[str, np.ndarray]]


def ratio(network: Network, block: tuple[int, int], tile: MapTile, rounds: int) -> float:
    """Seconds of a tile apart over those together."""
    cores = len(os.sched_getaffinity(0))
    whole = _run(network, block, tile, cores)
    several = [_run(network, block, part, 1) for part in parts(tile, cores)]
    fastest = [float("inf")] * 2
    with ThreadPoolExecutor(len(several)) as pool:
        for _ in range(rounds + 1):  # the first warms up
            for k, runs in enumerate(([whole], several)):
                began = time.perf_counter()
                list(pool.map(lambda run: run[0].run(None, dict(run[1])), runs))
                fastest[k] = min(fastest[k], time.perf_counter() - began)
    return fastest[1] / fastest[0]


def _run(network: Network, block: tuple[int, int], tile: MapTile, threads: int) -> Run:
    """A session of the tile's program as workers make it, and an input."""
    blobs, rng = BlobSource(), np.random.default_rng(0)
    boxes = tile_boxes(network, *block, tile)
    piece = cut(network.graph, network.nodes(*block), boxes, blobs, static=True)
    model = onnx.ModelProto.FromString(piece.program.graph)
    for ref in piece.program.weights:
        embed_weight(model, ref, bytes(blobs.bytes_of(ref.sha256)))
    chosen = options(Path(), threads, optimise=True, shared=False)
    feeds = {
        name: rng.standard_normal(box.shape, dtype=np.float32) for name, box in piece.inputs.items()
    }
    return make_session(model.SerializeToString(), chosen), feeds


def tiles(network: Network, count: int, seed: int) -> list[tuple[tuple[int, int], MapTile]]:
    """Random strips of random blocks of one to four layers, with rows and columns to divide."""
    rng, marks = random.Random(seed), network.marks
    found: list[tuple[tuple[int, int], MapTile]] = []
    while len(found) < count:
        first = rng.randrange(len(marks) - 1)
        last = min(len(marks) - 1, first + rng.randint(1, 4))
        block = marks[first], marks[last]
        strip = rng.choice(grid(network, *block, rng.choice(STRIPS), 1))
        if network.is_divisible(*block) and max(len(strip.rows), len(strip.cols)) > 1:
            found.append((block, strip))
    return found


def main() -> None:
    """Prints the ratios of every network, and what a worker measures when it starts."""
    parser = command_line(__doc__)
    parser.add_argument("--tiles", type=int, default=12, help="of each network")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    networks: dict[str, Any] = {}
    for name in NETWORKS:
        loaded = catalogue.load(name)
        network = divide(load_graph(loaded.proto, loaded.name))
        ratios = sorted(
            ratio(network, *tile, chosen.rounds)
            for tile in tiles(network, chosen.tiles, chosen.seed)
        )
        networks[name] = {
            "apart_over_together": round(statistics.median(ratios), 3),
            "least": round(ratios[0], 3),
            "most": round(ratios[-1], 3),
            "tiles": len(ratios),
        }
    with tempfile.TemporaryDirectory() as folder:
        engine = OnnxRuntime(Place(Path(folder), BlobStore(Path(folder), 1), 1))
        timing = measured(engine, len(os.sched_getaffinity(0)), 0)
    worker = {**asdict(timing), "is_faster_apart": timing.is_faster_apart} if timing else None
    lines = [
        f"{name:12} {ratios['apart_over_together']:.2f} "
        f"({ratios['least']:.2f} to {ratios['most']:.2f})"
        for name, ratios in networks.items()
    ]
    told = f"{timing.apart_s / timing.together_s:.2f}" if timing else "nothing, it was too busy"
    text = "\n".join([*lines, f"a worker that starts measures {told}"])
    emit({"networks": networks, "worker": worker}, chosen, text)


if __name__ == "__main__":
    main()
