"""How a worker uses its cores: all for one task, or one core for each of several tasks at once.

Threads of one session wait for each other after every layer; tasks with one thread each do not, but
compute their halos twice. Which is faster depends on the processor and on onnxruntime, so it is
measured once and stored with the other data of this processor and runtime.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import structlog
from onnx import TensorProto, helper

from models.cut.program import Program
from models.cut.tiles import even_spans
from protos.daemon.files import write_atomically
from protos.daemon.process_memory import give_back_memory
from worker.engines.base import Engine, Runnable
from worker.engines.processor import settle_thread
from worker.settings import WorkerSettings

FILE = "cores.json"

# Plans for several tasks at once have more halos, messages and tasks: simulated, `auto` takes
# 10 to 35 % longer for VGG-16 and ResNet-50 on one to four devices of four such tasks. The cores
# have to gain more than most of that.
_GAIN = 0.8
# Every concurrent task has its own program: a plan of 40 blocks takes 300 MB more for each.
_TASK_BYTES = 500_000_000
_CHANNELS, _ROWS, _COLS = 64, 56, 56
_LAYERS = 3
_LEAST_ROUNDS = 3
_MEASURE_S = 0.5
# A thread that had a smaller share of a core than this competed with another process.
_QUIET = 0.9
_SEED = 20_240_601

# Arguments: the engine, the number of cores, the niceness.
Measure: TypeAlias = Callable[[Engine, int, int], "CoreTiming | None"]
# Seconds together, seconds apart, and the least share of a core that a thread of the latter had.
_Round: TypeAlias = tuple[float, float, float]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CoreTiming:
    """Seconds for the same convolutions: `together_s` in one session with a thread per core,
    `apart_s` in strips, with one single-threaded session per core, all at once.
    """

    together_s: float
    apart_s: float

    @property
    def is_faster_apart(self) -> bool:
        """Whether computing several tasks at once is faster."""
        return self.apart_s < self.together_s * _GAIN


def settled(
    settings: WorkerSettings, engine: Engine, measure: Measure | None = None
) -> WorkerSettings:
    """The settings with `threads` and `concurrency` resolved.

    If they are left open, and there are several cores and memory for as many programs, `measure`
    finds them at the first start (None: the machine was busy with something else), and again only
    for another engine or processor. An engine with limits computes one network at a time.
    """
    is_given = settings.threads or settings.concurrency or settings.pace < 1
    if is_given or engine.traits.limits is not None:
        return _divided(settings, settings.concurrency or 1)
    cores = settings.usable_cores
    if cores == 1 or settings.memory_bytes < cores * _TASK_BYTES:
        return _divided(settings, 1)
    path = settings.state_dir / FILE
    key = hashlib.sha256(f"{engine.traits.fingerprint}|{cores}".encode()).hexdigest()
    timing = _kept(path, key)
    if timing is None:
        timing = (measure or measured)(engine, cores, settings.nice)
        if timing is None:
            _log.info("cores not measured", cause="other programs use them", cure="Start again")
            return _divided(settings, 1)
        with suppress(OSError):  # the disk is full: measure again at the next start
            write_atomically(path, json.dumps({"key": key, **asdict(timing)}).encode())
        _log.info("cores measured", **asdict(timing))
    return _divided(settings, cores if timing.is_faster_apart else 1)


def measured(engine: Engine, cores: int, nice: int) -> CoreTiming | None:
    """Times both alternately for about half a second: the fastest of each, among the rounds in
    which no other process used the cores; None if there were too few. The threads run at niceness
    `nice`.
    """
    random = np.random.default_rng(_SEED)
    size = (1, _CHANNELS, _ROWS + 2 * _LAYERS, _COLS)
    whole = random.standard_normal(size, dtype=np.float32)
    strips = [
        np.ascontiguousarray(whole[:, :, rows.start : rows.stop + 2 * _LAYERS])
        for rows in even_spans(_ROWS, cores)
        if len(rows)
    ]
    program = Program(_convolutions(), ())
    with ThreadPoolExecutor(cores, "measure", settle_thread, (nice,)) as pool:

        def session(threads: int) -> Runnable:
            return engine.trial(program, {}, threads)

        def one_round() -> _Round:
            began_s = time.perf_counter()
            pool.submit(_share, one, whole).result()
            between_s = time.perf_counter()
            least = min(pool.map(_share, several, strips))
            return between_s - began_s, time.perf_counter() - between_s, least

        # A session's threads inherit the niceness of the thread that creates it.
        one = pool.submit(session, cores).result()
        several = [pool.submit(session, 1).result() for _ in strips]
        one_round()
        rounds: list[_Round] = []
        began_s = time.monotonic()
        while len(rounds) < _LEAST_ROUNDS or time.monotonic() < began_s + _MEASURE_S:
            rounds.append(one_round())
    give_back_memory()
    return _quiet(rounds)


def _quiet(rounds: Sequence[_Round]) -> CoreTiming | None:
    """The fastest of each kind among the undisturbed rounds."""
    quiet = [(together, apart) for together, apart, share in rounds if share >= _QUIET]
    if len(quiet) < _LEAST_ROUNDS:
        return None
    return CoreTiming(*(min(times) for times in zip(*quiet, strict=True)))


def _divided(settings: WorkerSettings, concurrency: int) -> WorkerSettings:
    threads = settings.threads or max(1, settings.usable_cores // concurrency)
    return settings.model_copy(update={"threads": threads, "concurrency": concurrency})


def _kept(path: Path, key: str) -> CoreTiming | None:
    """The stored measurement of this processor and onnxruntime; None if there is none that can be
    read.
    """
    try:
        stored = json.loads(path.read_bytes())
        if stored["key"] == key:
            return CoreTiming(float(stored["together_s"]), float(stored["apart_s"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _share(program: Runnable, feed: np.ndarray) -> float:
    """Runs it; returns the share of a core that the calling thread had."""
    ready = program.bound({"x": feed}, {})
    began_s, cpu_s = time.perf_counter(), time.thread_time()
    ready.compute()
    return (time.thread_time() - cpu_s) / (time.perf_counter() - began_s)


def _convolutions() -> bytes:
    """`_LAYERS` convolutions 3x3 with ReLU, padded at the sides only: each removes one row at
    either end.
    """
    random = np.random.default_rng(_SEED)
    nodes, weights = [], []
    for layer in range(_LAYERS):
        values = random.standard_normal((_CHANNELS, _CHANNELS, 3, 3), dtype=np.float32)
        values /= 3 * np.sqrt(_CHANNELS, dtype=np.float32)
        weights.append(
            helper.make_tensor(
                f"w{layer}", TensorProto.FLOAT, values.shape, values.tobytes(), raw=True
            )
        )
        source = f"y{layer - 1}" if layer else "x"
        nodes += [
            helper.make_node("Conv", [source, f"w{layer}"], [f"c{layer}"], pads=[0, 1, 0, 1]),
            helper.make_node("Relu", [f"c{layer}"], [f"y{layer}"]),
        ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, _CHANNELS, "rows", "cols"])
        for name in ("x", f"y{_LAYERS - 1}")
    ]
    graph = helper.make_graph(nodes, "convolutions", ends[:1], ends[1:], initializer=weights)
    opset = [helper.make_opsetid("", 17)]
    model: bytes = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    return model
