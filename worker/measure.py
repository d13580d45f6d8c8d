"""Times one program on random tensors, in turn with the tasks of the compute thread."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
import psutil  # type: ignore[import-untyped, unused-ignore]

from models.memory import megabytes
from models.program import Program, WeightRef
from protos.convert import MAX_DIMS, dtype_of
from protos.errors import BadRequest
from protos.heap import give_back_memory
from protos.memory import free_bytes
from worker.compute import Compute
from worker.failures import OutOfMemory, from_runtime
from worker.graphs import (
    EMBED_BELOW_BYTES,
    checked_model,
    declare_weight,
    embed_weight,
    weight_bytes,
)
from worker.runtime import Session, make_session, options
from worker.store import BlobStore

_SEED = 20_240_601
# Large weights repeat a pattern of this many values: drawing 100 million takes seconds.
_PATTERN = 1 << 16
_MAX_REPEATS = 1000
_MAX_S = 120.0
_PLACEHOLDER = "random"


@dataclass(frozen=True, slots=True)
class TensorShape:
    """An input to make up."""

    tensor: str
    dtype: np.dtype
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of every repeat with the fastest number of threads, under the pace."""

    seconds: tuple[float, ...]
    threads: int
    resident_bytes: int


class Measurer:
    """Measures programs whose weights are in the store or random."""

    def __init__(self, store: BlobStore, compute: Compute, *, as_on_arm: bool = False) -> None:
        self._store = store
        self._compute = compute
        self._as_on_arm = as_on_arm
        self._one_at_a_time = asyncio.Lock()

    async def measure(
        self,
        program: Program,
        inputs: Sequence[TensorShape],
        repeats: int,
        at_most_s: float,
        threads: Sequence[int],
    ) -> Measured:
        """One warm run, then up to `repeats` timed ones, at least one; each takes its turn in the
        compute thread, so tasks wait for one run at most. The time is shared by the candidates.

        Raises:
            ImbrexError: the program is refused, or memory is short.
        """
        async with self._one_at_a_time:
            budget_s = min(at_most_s or _MAX_S, _MAX_S) / len(threads)
            count = max(1, min(repeats, _MAX_REPEATS))
            results = [
                await self._candidate(program, inputs, count, budget_s, number)
                for number in threads
            ]
        await asyncio.to_thread(give_back_memory)
        return min(results, key=lambda result: statistics.median(result.seconds))

    async def _candidate(
        self,
        program: Program,
        inputs: Sequence[TensorShape],
        repeats: int,
        budget_s: float,
        threads: int,
    ) -> Measured:
        session, feed = await asyncio.to_thread(self._ready, program, inputs, threads)
        until = time.monotonic() + budget_s
        await self._compute.run(lambda: session.bound(feed, {}))
        seconds: list[float] = []
        while len(seconds) < repeats and (not seconds or time.monotonic() < until):
            timed = await self._compute.run(lambda: session.bound(feed, {}))
            seconds.append(timed.stop_s - timed.start_s)
        return Measured(tuple(seconds), threads, psutil.Process().memory_info().rss)

    def _ready(
        self, program: Program, inputs: Sequence[TensorShape], threads: int
    ) -> tuple[Session, dict[str, np.ndarray]]:
        model = checked_model(program)
        needed = sum(weight_bytes(ref) for ref in program.weights)
        needed += sum(int(np.prod(entry.dims)) * entry.dtype.itemsize for entry in inputs)
        if needed > free_bytes():
            raise OutOfMemory(
                cause=f"measuring needs at least {megabytes(needed)}, more than is free",
                cure="Measure smaller programs on this device",
            )
        # onnxruntime checks that the file exists even for weights handed over in memory.
        with tempfile.TemporaryDirectory(dir=self._store.blobs.parent, prefix=".measure") as name:
            folder = Path(name)
            chosen = options(folder, threads, optimise=True, shared=False)
            largest = max((weight_bytes(ref) for ref in program.weights), default=0)
            with (folder / _PLACEHOLDER).open("wb") as sparse:
                sparse.truncate(largest)
            values = []
            for ref in program.weights:
                array = self._array(ref)
                if array.nbytes < EMBED_BELOW_BYTES:
                    embed_weight(model, ref, array.tobytes())
                    continue
                declare_weight(model, ref, _PLACEHOLDER)
                try:
                    value = ort.OrtValue.ortvalue_from_numpy(array)
                    chosen.add_initializer(ref.name, value)
                except Exception as error:
                    raise from_runtime(error, "giving weights to a program") from error
                values.append(value)
            inference = make_session(model.SerializeToString(), chosen, as_on_arm=self._as_on_arm)
        random = np.random.default_rng(_SEED)
        feed = {entry.tensor: _random(entry.dims, entry.dtype, random) for entry in inputs}
        # Plain onnxruntime packs weights, sessions of tasks do not: other kernels.
        return Session(f"plain {program.sha256} on {threads}", inference, values), feed

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
                cause=f"the weight {ref.name!r} is not here", cure="Put it, then measure"
            )
        if self._store.size(ref.sha256) != weight_bytes(ref):
            raise BadRequest(
                cause=f"the weight {ref.name!r} has another size than its blob",
                cure="Cut the program again",
            )
        return np.memmap(self._store.path(ref.sha256), dtype, mode="r", shape=ref.dims)


def input_shape(tensor: str, data_type: int, dims: Sequence[int]) -> TensorShape:
    """A checked input of a measurement.

    Raises:
        BadRequest: dimensions that make no sense.
        PeerViolation: a data type that does not travel.
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
