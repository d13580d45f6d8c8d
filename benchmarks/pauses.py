"""What a pause before a request costs it: onnxruntime with the threads of its pool pinned to cores,
as workers have them, and free, in turns in one run; alone, and beside another program that takes a
core. Takes a quarter of an hour.

    python -m benchmarks.pauses [--only resnet50,mobilenetv2] [--json] [-o FILE]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from benchmarks.busy import busy_core
from benchmarks.report import command_line, emit
from models.catalogue.catalogue import load
from models.onnx_file.importer import graph_of
from models.run.reference import random_inputs
from models.tensors.arrays import Arrays
from worker.engines.ort_session import AFFINITIES, cores_of_pool, make_session, options

NETWORKS = ("resnet50", "mobilenetv2", "yolov8n")
PAUSES_S = (0.0, 0.05, 0.3, 1.0)
# Threads stay for a while where a run has put them.
TURNS, RUNS = 6, 7


def measure(name: str, *, busy: bool) -> dict[str, Any]:
    """One network: median milliseconds after each pause, of either session."""
    stored = load(name).stored
    feeds, model = random_inputs(graph_of(stored, name)), stored.complete().SerializeToString()
    sessions = {"pinned": _session(model, pinned=True), "free": _session(model, pinned=False)}
    seconds: dict[tuple[str, float], list[float]] = {}
    with busy_core(busy):
        for _ in range(TURNS):
            for pause_s in PAUSES_S:
                for kind, session in sessions.items():
                    seconds.setdefault((kind, pause_s), []).extend(_runs(session, feeds, pause_s))
    rows = []
    for pause_s in PAUSES_S:
        pinned, free = (1e3 * statistics.median(seconds[kind, pause_s]) for kind in sessions)
        rows.append(
            {
                "pause_s": pause_s,
                "pinned_ms": round(pinned, 2),
                "free_ms": round(free, 2),
                "ratio": round(free / pinned, 2),
            }
        )
    return {"network": name, "beside_a_busy_core": busy, "pauses": rows}


def _session(model: bytes, *, pinned: bool) -> ort.InferenceSession:
    usable = os.sched_getaffinity(0)
    chosen = options(Path(), len(usable), optimise=True, shared=False)
    if not pinned:
        anywhere = ",".join(str(core + 1) for core in sorted(usable))
        pool = cores_of_pool(len(usable))
        chosen.add_session_config_entry(AFFINITIES, ";".join(anywhere for _ in pool))
    return make_session(model, chosen)


def _runs(session: ort.InferenceSession, feeds: Arrays, pause_s: float) -> Iterator[float]:
    for _ in range(RUNS):
        time.sleep(pause_s)
        began_s = time.perf_counter()
        session.run(None, feeds)
        yield time.perf_counter() - began_s


def _lines(row: dict[str, Any]) -> Iterator[str]:
    yield row["network"] + (" beside a busy core" if row["beside_a_busy_core"] else "")
    for pause in row["pauses"]:
        yield (
            "  after {pause_s:4} s: {pinned_ms:8.2f} ms pinned, {free_ms:8.2f} free: "
            "{ratio:.2f} times"
        ).format_map(pause)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures; fails on a single core, where there is nothing to pin."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default=",".join(NETWORKS), metavar="NAME,...", help="networks")
    chosen = parser.parse_args(arguments)
    ort.set_default_logger_severity(3)  # of an entry that is set again
    cores = len(os.sched_getaffinity(0))
    if not cores_of_pool(cores):
        print("not measured: there is only one core", file=sys.stderr)
        return 1
    rows = []
    for busy in (False, True):
        for name in chosen.only.split(","):
            rows.append(measure(name, busy=busy))
            print("\n".join(_lines(rows[-1])), file=sys.stderr, flush=True)
    result = {"onnxruntime": ort.__version__, "cores": cores, "networks": rows}
    emit(result, chosen, "\n".join(line for row in rows for line in _lines(row)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
