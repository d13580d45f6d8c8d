"""The interface of an engine, the library that computes: it describes itself, prepares programs and
sets up runs. Everything else (weights, memory, scheduling, messages) is up to the worker.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from models.cut.program import Program
from models.tensors.arrays import Arrays, Shape, is_finite
from protos.errors import Unavailable
from protos.failures import BadInput, NotFinite
from protos.wire.convert import dtype_of
from protos.wire.limits import ALL_TYPES, Limits
from worker.engines.processor import cpu_gflops
from worker.programs.store import BlobStore

T = TypeVar("T")
# The shapes of the outputs that a run is to compute; None: known only afterwards.
WantedShapes: TypeAlias = Mapping[str, Shape | None]

Processor: TypeAlias = Literal["cpu", "gpu", "npu"]

# Programs without their weights, a few kilobytes each.
_MOST_PROGRAMS = 4096


@dataclass(frozen=True, slots=True)
class Traits:
    """The description of an engine.

    `fingerprint` differs for engines that compute differently or keep programs in another form: it
    covers the version, the processor's kernels and options. `dtypes` (numpy's names) are those
    allowed for inputs and outputs of programs. `tolerance` is how far results may be from
    onnxruntime's, relative to the largest magnitude of a program's outputs. `limits`: it computes
    whole networks only (`models.cut.program`), of which the coordinator plans those that they take.
    `may_crash`: another process makes its first run of each program.
    """

    name: str
    version: str
    processor: Processor
    fingerprint: str
    dtypes: frozenset[str] = ALL_TYPES
    tolerance: float = 1e-5
    limits: Limits | None = None
    may_crash: bool = False


@dataclass(frozen=True, slots=True)
class Ready(Generic[T]):
    """A run that is set up: the function that computes, the bytes of weights it reads, and the name
    of its kernels (empty if unknown), and the names of outputs that have to be finite.
    """

    compute: Callable[[], T]
    weight_bytes: int = 0
    kernels: tuple[object, ...] = ()
    finite: Collection[str] = ()

    def check(self, result: T) -> None:
        """Inspects the result, which is no part of the measured time.

        Raises:
            NotFinite: an output is not finite that has to be.
        """
        for name in self.finite:
            assert isinstance(result, Mapping)
            if not is_finite(result[name]):
                raise NotFinite(
                    cause=f"the program produced values of {name!r} that are not finite",
                    cure="If only this device does so, check its memory and its power supply",
                )


@dataclass(frozen=True, slots=True)
class Signature:
    """An input or output of a program; free sizes are None."""

    dtype: np.dtype
    dims: tuple[int | None, ...]


class Runnable(ABC):
    """A program that can run. `blobs` are the files in the store that it refers to, and the bytes
    that its runs read from each.
    """

    def __init__(
        self,
        inputs: Mapping[str, Signature],
        outputs: Mapping[str, Signature],
        blobs: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)
        self.blobs = dict(blobs)

    def bound(self, inputs: Arrays, shapes: WantedShapes) -> Ready[dict[str, np.ndarray]]:
        """A run that computes the outputs named in `shapes` into fresh arrays; a shape of None is
        known only afterwards. If nothing is named, everything is computed.

        `inputs` are C-contiguous, and stay untouched until it has ended.

        Raises:
            ImbrexError: inputs or shapes that do not fit, too little memory; when run, a failed
                kernel.
        """
        if inputs.keys() != self.inputs.keys() or not shapes.keys() <= self.outputs.keys():
            raise BadInput(
                cause=f"the task has inputs {sorted(inputs)} and outputs {sorted(shapes)}, but "
                f"the program has {sorted(self.inputs)} and {sorted(self.outputs)}",
                cure="Send tasks that fit their program",
            )
        for name, array in inputs.items():
            wanted = self.inputs[name]
            sizes = zip(wanted.dims, array.shape, strict=False)
            fits = array.ndim == len(wanted.dims) and array.dtype == wanted.dtype
            if not fits or not all(fixed in (None, size) for fixed, size in sizes):
                raise BadInput(
                    cause=f"the input {name!r} is {array.dtype} of shape {array.shape}, but the "
                    f"program takes {wanted.dtype} of shape {wanted.dims}",
                    cure="Send tasks that fit their program",
                )
        return self._bind(inputs, shapes)

    @abstractmethod
    def _bind(self, inputs: Arrays, shapes: WantedShapes) -> Ready[dict[str, np.ndarray]]:
        """Like `bound`, with inputs that fit. Everything but the kernels is done before this
        returns.
        """


class Engine(Protocol):
    """Prepares programs. The slow methods `prepare` and `trial` are called by one thread at a time;
    `load` may be called concurrently.
    """

    traits: Traits

    def gflops(self, cores: int, mhz: float) -> float:
        """An estimate of the GFLOP/s of convolutions with `cores` threads on cores at `mhz` (0:
        unknown), used until the device is measured.
        """
        ...

    def memory_bytes(self, allowed_bytes: int) -> int:
        """The bytes for programs and tensors on a worker that may use `allowed_bytes`."""
        ...

    def is_prepared(self, sha256: str) -> bool:
        """Whether `load` has all that it needs for a program."""
        ...

    def prepare(self, program: Program) -> None:
        """Makes a program ready to be loaded, now and after a restart; its weights are in the
        store.

        Raises:
            ImbrexError: the program is refused, or memory or disk are short.
        """
        ...

    def load(self, sha256: str) -> Runnable | None:
        """A prepared program, quickly; None if its prepared form is gone."""
        ...

    def trial(self, program: Program, weights: Arrays, threads: int) -> Runnable:
        """The program with these weights (by name) and this many threads, for a measurement.

        Raises:
            ImbrexError: the program is refused, or memory is short.
        """
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """What an engine works with: a private folder for prepared programs, the store of weights, the
    threads of one task, the bytes that the worker may use, and the niceness of its threads.

    What is temporary in `folder` has a name with a leading dot: the worker removes what a killed
    one has left there.
    """

    folder: Path
    store: BlobStore
    threads: int
    memory_bytes: int = 1 << 40
    nice: int = 0


class ProgramCache:
    """The programs since the start by hash, for engines that have no prepared form of their own on
    disk; the oldest are dropped.
    """

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._programs: OrderedDict[str, Program] = OrderedDict()

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._programs

    def add(self, program: Program) -> None:
        """Adds a program."""
        self._programs[program.sha256] = program
        while len(self._programs) > _MOST_PROGRAMS:
            self._programs.popitem(last=False)

    def get(self, sha256: str) -> Program | None:
        """A program; None if it is not here, or no longer."""
        return self._programs.get(sha256)

    def all(self) -> list[Program]:
        """All of them, the oldest first."""
        return list(self._programs.values())

    def weights(self, program: Program) -> dict[str, np.ndarray]:
        """A program's weights by name: maps of their blobs.

        Raises:
            Unavailable: a blob is no longer there.
        """
        arrays: dict[str, np.ndarray] = {}
        for ref in program.weights:
            dtype = dtype_of(ref.data_type)
            try:
                arrays[ref.name] = (
                    np.empty(ref.dims, dtype)
                    if 0 in ref.dims
                    else np.memmap(self._store.path(ref.sha256), dtype, mode="r", shape=ref.dims)
                )
            except (OSError, ValueError) as error:
                raise Unavailable(
                    cause=f"the weight {ref.name!r} is no longer here: {error}",
                    cure="Raise disk_mb on this worker",
                ) from error
        return arrays


# `Engine.trial`.
Trial: TypeAlias = Callable[[Program, Arrays, int], Runnable]
EngineFactory: TypeAlias = Callable[[Place], Engine]


class CompilingEngine(ABC):
    """An engine that keeps programs as they are, and compiles them for the shapes of their tasks;
    after a start, programs have to arrive again.
    """

    traits: Traits

    def __init__(self, place: Place) -> None:
        self._place = place
        self._programs = ProgramCache(place.store)

    def gflops(self, cores: int, mhz: float) -> float:
        """As for onnxruntime."""
        return cpu_gflops(cores, mhz)

    def memory_bytes(self, allowed_bytes: int) -> int:
        """All of the allowed memory."""
        return allowed_bytes

    def is_prepared(self, sha256: str) -> bool:
        """Whether the program has been given since the start."""
        return sha256 in self._programs

    def prepare(self, program: Program) -> None:
        """Keeps the program."""
        self._programs.add(program)

    def load(self, sha256: str) -> Runnable | None:
        """The program with its weights in the store; None if it has not been given."""
        program = self._programs.get(sha256)
        if program is None:
            return None
        return self.trial(program, self._programs.weights(program), self._place.threads)

    @abstractmethod
    def trial(self, program: Program, weights: Arrays, threads: int) -> Runnable:
        """The program with these weights and this many threads."""
