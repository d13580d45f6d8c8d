"""The rate of this machine's cores, from which a worker's pace follows."""

from __future__ import annotations

import time

import onnxruntime as ort

from models.importer import load_graph
from models.reference import random_inputs
from models.zoo.vgg import vgg16
from worker.engines.ort_session import BLOCKED_LAYOUT, make_session

# VGG-16's convolutions at this side run at the rate of those at 256 (measured: 111 and 112
# GFLOP/s on x86-64), in a quarter of the time.
SIDE = 128
GFLOP = 40.09 * (SIDE / 256) ** 2


def core_gflops(runs: int) -> float:
    """The rate of one of this machine's cores, by the least CPU time of so many runs: as workers
    that take turns count theirs. Other programs come and go; a run takes a tenth of a second.
    """
    chosen = ort.SessionOptions()
    chosen.intra_op_num_threads = 1
    model = vgg16(SIDE, classifier=False).complete()
    session = make_session(model.SerializeToString(), chosen, (BLOCKED_LAYOUT,))
    feeds = random_inputs(load_graph(model, model.graph.name))
    session.run(None, feeds)
    seconds = []
    for _ in range(runs):
        before = time.thread_time()
        session.run(None, feeds)
        seconds.append(time.thread_time() - before)
    return GFLOP / min(seconds)
