"""Times one program on random tensors, interleaved with the tasks of the compute thread."""

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.cut.program import Program, WeightRef
from models.tensors.memory import PEAK_OVER_WEIGHTS, megabytes
from protos.daemon.process_memory import free_bytes, give_back_memory, resident_bytes
from protos.errors import BadRequest, ImbrexError
from protos.failures import OutOfMemory
from protos.wire.convert import MAX_DIMS, dtype_of
from worker.compute.compute import Compute
from worker.engines.base import Engine, Runnable, Trial
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.verified import Verified
from worker.programs.graphs import checked_model, weight_bytes
from worker.programs.store import BlobStore

_SEED = 20_240_601
# Large weights repeat a pattern of this many values: drawing 100 million takes seconds.
_PATTERN = 1 << 16
_MAX_REPEATS = 1000
_MAX_S = 120.0


@dataclass(frozen=True, slots=True)
class TensorShape:
    """An input to generate."""

    tensor: str
    dtype: np.dtype
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of each repeat by engine, each with its fastest number of threads, at the worker's
    pace.
    """

    engines: Mapping[str, "EngineSeconds"]
    resident_bytes: int

    @property
    def fastest(self) -> "EngineSeconds":
        """Those of the fastest engine."""
        return min(self.engines.values(), key=EngineSeconds.median)


@dataclass(frozen=True, slots=True)
class EngineSeconds:
    """Seconds of each repeat by an engine with so many threads."""

    seconds: tuple[float, ...]
    threads: int

    def median(self) -> float:
        """The median of the repeats."""
        return statistics.median(self.seconds)


class Measurer:
    """Measures programs whose weights are in the store or random."""

    def __init__(self, store: BlobStore, compute: Compute, engine: Engine) -> None:
        self._store = store
        self._compute = compute
        self._engine = engine
        self._one_at_a_time = asyncio.Lock()

    async def measure(
        self,
        program: Program,
        inputs: Sequence[TensorShape],
        repeats: int,
        at_most_s: float,
        threads: Sequence[int],
    ) -> Measurement:
        """With each engine that can run the program, one warm-up run, then up to `repeats` timed
        ones, at least one; each is queued in the compute thread, so tasks wait for one run at most.
        Engines and numbers of threads share the time limit.

        Raises:
            ImbrexError: the program is refused, or memory is short.
        """
        trials = _trials(self._engine)
        results: dict[str, EngineSeconds] = {}
        refusal: ImbrexError | None = None
        async with self._one_at_a_time:
            budget_s = min(at_most_s or _MAX_S, _MAX_S) / len(threads) / len(trials)
            count = max(1, min(repeats, _MAX_REPEATS))
            for name, trial in trials.items():
                try:
                    candidates = [
                        await self._candidate(trial, program, inputs, count, budget_s, number)
                        for number in threads
                    ]
                except ImbrexError as error:
                    refusal = error
                else:
                    results[name] = min(candidates, key=EngineSeconds.median)
        memory_bytes = resident_bytes()
        await asyncio.to_thread(give_back_memory)
        if not results:
            assert refusal is not None, "there is an engine"
            raise refusal
        return Measurement(results, memory_bytes)

    async def _candidate(
        self,
        trial: Trial,
        program: Program,
        inputs: Sequence[TensorShape],
        repeats: int,
        budget_s: float,
        threads: int,
    ) -> EngineSeconds:
        session, feed = await asyncio.to_thread(self._ready, trial, program, inputs, threads)
        until = time.monotonic() + budget_s
        await self._compute.run(lambda: session.bound(feed, {}))
        seconds: list[float] = []
        while len(seconds) < repeats and (not seconds or time.monotonic() < until):
            timed = await self._compute.run(lambda: session.bound(feed, {}))
            seconds.append(timed.stop_s - timed.start_s)
        return EngineSeconds(tuple(seconds), threads)

    def _ready(
        self, trial: Trial, program: Program, inputs: Sequence[TensorShape], threads: int
    ) -> tuple[Runnable, dict[str, np.ndarray]]:
        checked_model(program)
        needed = PEAK_OVER_WEIGHTS * sum(weight_bytes(ref) for ref in program.weights)
        needed += sum(int(np.prod(entry.dims)) * entry.dtype.itemsize for entry in inputs)
        if needed > free_bytes():
            raise OutOfMemory(
                cause=f"measuring needs at least {megabytes(needed)}, more than is free",
                cure="Measure smaller programs on this device",
            )
        weights = {ref.name: self._array(ref) for ref in program.weights}
        random = np.random.default_rng(_SEED)
        feed = {entry.tensor: _random(entry.dims, entry.dtype, random) for entry in inputs}
        runnable = trial(program, weights, threads)
        runnable.bound(feed, {})  # compiles it, which tasks must not wait for
        return runnable, feed

    def _array(self, ref: WeightRef) -> np.ndarray:
        dtype = dtype_of(ref.data_type)
        if not ref.sha256:
            random = np.random.default_rng(_SEED)
            fan_in = max(1, int(np.prod(ref.dims[1:], dtype=np.int64)))
            values = _random(ref.dims, dtype, random)
            # Keeps activations near 1 through any depth: denormals would be slow.
            return (values * np.sqrt(2 / fan_in)).astype(dtype) if dtype.kind == "f" else values
        if self._store.missing([ref.sha256]):
            raise BadRequest(
                cause=f"the weight {ref.name!r} is not here", cure="Send it, then measure"
            )
        if self._store.size(ref.sha256) != weight_bytes(ref):
            raise BadRequest(
                cause=f"the weight {ref.name!r} has another size than its blob",
                cure="Cut the program again",
            )
        return np.memmap(self._store.path(ref.sha256), dtype, mode="r", shape=ref.dims)


def _trials(engine: Engine) -> Mapping[str, Trial]:
    if isinstance(engine, OnnxRuntime | Verified):
        return engine.trials
    return {engine.traits.name: engine.trial}


def input_shape(tensor: str, data_type: int, dims: Sequence[int]) -> TensorShape:
    """An input of a measurement, checked.

    Raises:
        BadRequest: impossible dimensions.
        PeerViolation: a data type that the wire does not carry.
    """
    if len(dims) > MAX_DIMS or any(size < 0 for size in dims):
        raise BadRequest(
            cause=f"the input {tensor!r} cannot have the shape {tuple(dims)}",
            cure="Give the shape of one tile",
        )
    return TensorShape(tensor, dtype_of(data_type), tuple(dims))


def _random(dims: tuple[int, ...], dtype: np.dtype, random: np.random.Generator) -> np.ndarray:
    """Seeded values of ordinary magnitude, never denormal."""
    if dtype.kind == "f":
        pattern = random.standard_normal(_PATTERN).astype(dtype)
        pattern[np.abs(pattern) < 1e-3] = 1e-3
    else:
        pattern = random.integers(0, 2 if dtype.kind == "b" else 100, _PATTERN).astype(dtype)
    return np.resize(pattern, dims)
