"""What preparing a plan's programs costs: halos that another process sends meanwhile, from when one
is sent until it is read, and the time, with onnxruntime alone and with ncnn beside it, as a worker
prepares them for a plan for four Pi 4s.

ncnn holds Python's lock while it prepares a layer, and a halo waits for that.

    python -m benchmarks.loading [--only vgg16-conv,yolov8n] [--json] [-o FILE]
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
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
from worker.engines.registry import DEFAULT, factory_of
from worker.peers.packets import PacketReader, packets
from worker.programs.store import BlobStore
from worker.tasks.actions import TaskKey, TensorPiece

NETWORKS = ("vgg16-conv", "yolov8n", "resnet50", "yolov2")
# Between halos, as between kernels, and their shape.
TICK_S = 0.002
HALO = (1, 64, 1, 64)
IDLE_S = 2.0


class Halos:
    """Halos of a neighbour, which another process sends from now on: how long each one took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        there, self._here = socket.socketpair()
        forked = multiprocessing.get_context("fork")
        self._is_ended = forked.Event()
        self._sending = forked.Process(target=self._send, args=(there,))
        self._sending.start()
        there.close()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def end(self) -> None:
        """Ends both."""
        self._is_ended.set()
        self._sending.join()
        self._reading.join()
        self._here.close()

    def _send(self, stream: socket.socket) -> None:
        values = np.zeros(HALO, np.float32)
        while not self._is_ended.wait(TICK_S):
            key = TaskKey(repr(time.monotonic()), 1, 0, 0)
            for part in packets((TensorPiece(key, "x", Box.whole(HALO), values),)):
                stream.sendall(part)

    def _read(self) -> None:
        reader = PacketReader(self._here, "neighbour")
        while (packet := reader.next()) is not None:
            piece, _ = packet
            self.seconds.append(time.monotonic() - float(piece.key.request))


def measure(name: str) -> dict[str, Any]:
    """One network: seconds of either engine, and milliseconds of halos, of which there are as many
    without any preparation.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = BlobStore(Path(folder), 1 << 40)
        engines: dict[str, Engine] = {
            engine: factory_of(engine)(Place(Path(folder) / engine, store, 1))
            for engine in (DEFAULT, "ncnn")
        }
        seconds = dict.fromkeys(engines, 0.0)
        halos: dict[str, list[float]] = {engine: [] for engine in engines}
        programs = 0
        for piece, blobs in _pieces(name):
            for ref in piece.program.weights:
                store.path(ref.sha256).write_bytes(blobs.bytes_of(ref.sha256))
            for chosen, engine in engines.items():
                sent, began_s = Halos(), time.perf_counter()
                with suppress(BadInput):  # onnxruntime computes it
                    _prepare(engine, piece)
                    programs += chosen != DEFAULT
                seconds[chosen] += time.perf_counter() - began_s
                sent.end()
                halos[chosen] += sent.seconds
        undisturbed = Halos()
        time.sleep(max(sum(seconds.values()), IDLE_S))
        undisturbed.end()
    halos_ms = {"none": undisturbed.seconds, **halos}
    return {
        "network": name,
        "programs": programs,
        "preparing_s": seconds,
        "times": sum(seconds.values()) / seconds[DEFAULT],
        "halo_ms": {
            engine: {
                "median": 1e3 * float(np.median(times)),
                "p99": 1e3 * float(np.quantile(times, 0.99)),
                "longest": 1e3 * max(times),
            }
            for engine, times in halos_ms.items()
        },
    }


def _prepare(engine: Engine, piece: CutTile) -> None:
    """As for a first run.

    Raises:
        BadInput: the engine does not take it.
    """
    engine.prepare(piece.program)
    loaded = engine.load(piece.program.sha256)
    assert loaded is not None, "it was just prepared"
    loaded.bound(
        {
            name: np.zeros(box.shape, loaded.inputs[name].dtype)
            for name, box in piece.inputs.items()
        },
        {},
    )


def _pieces(name: str) -> Iterator[tuple[CutTile, BlobSource]]:
    network, blobs = network_of(load(name)), BlobSource()
    plan = propose(auto, network, cluster_of(load_kind(KIND), DEVICES))
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
    lines = []
    for row in rows:
        none, plain, both = (row["halo_ms"][name]["p99"] for name in ("none", DEFAULT, "ncnn"))
        lines.append(
            f"{row['network']:12} {row['times']:.2f} times as long with ncnn; p99 of a halo "
            f"{none:.2f} ms, beside onnxruntime {plain:.2f}, beside ncnn {both:.2f}"
        )
    text = "\n".join(lines)
    emit({"networks": rows}, chosen, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
