"""The rate of this machine's cores, from which a worker's pace follows.

Other programs come and go, and on a server so do its other tenants: for minutes, equal kernels take
up to twice the CPU time. What hardly changes is the share of one kernel's time in another's that
runs beside it. So everything is measured relative to a small convolution, the reference.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import onnxruntime as ort
from onnx import ModelProto

from models.catalogue.vgg import vgg16
from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.importer import load_graph
from models.run.reference import random_inputs
from worker.engines.ort_session import BLOCKED_LAYOUT, make_session

# VGG-16's convolutions at this side run at the rate of those at 256 (measured: 111 and 112
# GFLOP/s on x86-64), in a quarter of the time.
SIDE = 128
GFLOP = 40.09 * (SIDE / 256) ** 2
# A millisecond of one core.
_CHANNELS, _ROWS = 64, 40

Workload: TypeAlias = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Core:
    """A core of this machine that nothing disturbs: its GFLOP/s on VGG-16's convolutions, and the
    CPU seconds of the reference.
    """

    gflops: float
    reference_s: float


def reference() -> Workload:
    """A convolution of about a millisecond, in the calling thread."""
    net = NetworkBuilder("reference", seed=0)
    x = net.input("map", (1, _CHANNELS, _ROWS, _ROWS))
    return _run(net.stored(x.conv("convolution", _CHANNELS, square(3))).complete())


def measured_core(runs: int) -> Core:
    """The core, by the median of so many runs of a tenth of a second; CPU time is counted as by
    workers that take turns.
    """
    whole, beside = _run(vgg16(SIDE, classifier=False).complete()), reference()
    shares, least_s = [], float("inf")
    for _ in range(runs):
        times = [warm_s(run, time.thread_time) for run in (beside, whole, beside)]
        shares.append(share(*times))
        least_s = min(least_s, times[0], times[2])
    return Core(GFLOP / (statistics.median(shares) * least_s), least_s)


def warm_s(run: Workload, clock: Callable[[], float]) -> float:
    """Seconds of a run with warm caches."""
    run()
    begun_s = clock()
    run()
    return clock() - begun_s


def share(before_s: float, seconds: float, after_s: float) -> float:
    """A run's time as a multiple of the reference's, which ran before and after it."""
    return 2 * seconds / (before_s + after_s)


def _run(model: ModelProto) -> Workload:
    chosen = ort.SessionOptions()
    chosen.intra_op_num_threads = 1
    session = make_session(model.SerializeToString(), chosen, (BLOCKED_LAYOUT,))
    feeds = random_inputs(load_graph(model, model.graph.name))
    return lambda: session.run(None, feeds)
