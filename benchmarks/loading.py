"""How long ncnn keeps Python's other threads from running while it prepares the programs of a plan
for four Pi 4s: the longest pause of a thread that wakes up every half millisecond.

    python -m benchmarks.loading [--only vgg16-conv,yolov8n] [--json] [-o FILE]
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_blocks import DEVICES, KIND
from benchmarks.report import command_line, emit
from coordinator.planning.planners.auto import auto
from coordinator.planning.planners.propose import propose
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import load_kind
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of
from models.cut.cutter import CutTile, cut
from models.cut.program import BlobSource
from models.tensors.boxes import Box
from protos.failures import BadInput
from worker.engines.base import Engine, Place
from worker.engines.registry import factory_of
from worker.programs.store import BlobStore

NETWORKS = ("vgg16-conv", "yolov8n", "resnet50", "yolov2")
TICK_S = 0.0005
# Other programs on the machine cause pauses, too: of so many the shortest counts.
TURNS = 3


class _Ticker:
    """A thread that should never have to wait for longer than it sleeps."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._is_ended = False
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def end(self) -> None:
        """Ends the thread."""
        self._is_ended = True
        self._thread.join()

    def _work(self) -> None:
        before_s = time.perf_counter()
        while not self._is_ended:
            time.sleep(TICK_S)
            now_s = time.perf_counter()
            self.longest_s = max(self.longest_s, now_s - before_s - TICK_S)
            before_s = now_s


def measure(name: str) -> dict[str, Any]:
    """One network: the longest pause of all its programs and the median of their longest ones."""
    pauses, began_s = [], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        store = BlobStore(Path(folder), 1 << 40)
        engine = factory_of("ncnn")(Place(Path(folder) / "programs", store, 1))
        for piece, blobs in _pieces(name):
            for ref in piece.program.weights:
                store.path(ref.sha256).write_bytes(blobs.bytes_of(ref.sha256))
            feeds = {name: np.zeros(box.shape, np.float32) for name, box in piece.inputs.items()}
            engine.prepare(piece.program)
            with suppress(BadInput):  # onnxruntime computes it
                pauses.append(
                    min(_pause(engine, piece.program.sha256, feeds) for _ in range(TURNS))
                )
    return {
        "network": name,
        "programs": len(pauses),
        "longest, ms": 1e3 * max(pauses),
        "median, ms": 1e3 * float(np.median(pauses)),
        "preparing all, s": time.perf_counter() - began_s,
    }


def _pause(engine: Engine, sha256: str, feeds: Mapping[str, np.ndarray]) -> float:
    """The longest pause, in seconds, while a program is prepared for such inputs.

    Raises:
        BadInput: the engine does not take it.
    """
    loaded = engine.load(sha256)
    assert loaded is not None, "it was just prepared"
    feeds = {name: array.astype(loaded.inputs[name].dtype) for name, array in feeds.items()}
    ticker = _Ticker()
    try:
        loaded.bound(feeds, {})
    finally:
        ticker.end()
    return ticker.longest_s


def _pieces(name: str) -> Iterator[tuple[CutTile, BlobSource]]:
    network, blobs = network_of(load(name)), BlobSource()
    plan = propose(auto, network, cluster_of(load_kind(KIND).preset, DEVICES))
    for block in plan.blocks:
        names = network.outputs(block.start, block.stop)
        demand = {name: Box.whole(network.graph.shape(name)) for name in names}
        yield cut(network.graph, network.nodes(block.start, block.stop), demand, blobs), blobs


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default=",".join(NETWORKS), metavar="NAME,...", help="networks")
    chosen = parser.parse_args(arguments)
    rows = [measure(name) for name in chosen.only.split(",")]
    text = "\n".join(
        f"{row['network']:20} longest pause {row['longest, ms']:6.1f} ms, median "
        f"{row['median, ms']:.1f} ms of {row['programs']} programs"
        for row in rows
    )
    emit({"networks": rows}, chosen, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
