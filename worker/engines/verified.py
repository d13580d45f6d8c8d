"""A second engine next to onnxruntime, which computes only what it has been seen to compute right.

onnxruntime makes a program's first run for each combination of input shapes. A thread then has the
engine compute the same: it compares the results and times both. From then on the engine computes
such runs. A program that the engine refuses, fails to compute or computes differently stays with
onnxruntime, and several that it computes differently refuse the engine itself. So no answer waits
for a compilation, and none is wrong or lost because of an engine.

While a program is prepared for the engine, a file names it: if that ends the process, the next one
leaves the program to onnxruntime.
"""

import math
import threading
import time
import weakref
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import TypeAlias

import numpy as np
import onnx
import structlog

from models.check.tolerance import of_engine, rounding_in, without_rounding
from models.cut.program import Program
from models.cut.whole import whole_network
from models.run.reference import compare
from models.tensors.memory import engine_cap_bytes, megabytes
from models.tensors.precision import read_precision
from protos.daemon.memory_in_use import resident_bytes
from protos.failures import BadInput
from protos.wire.limits import ALL_TYPES, Limits
from worker.engines.base import Engine, Place, ProgramCache, Ready, Runnable, Traits
from worker.engines.processor import settle_thread

# So many programs with wrong results, more than right ones, are not the conversion of one.
MOST_WRONG = 3
# An engine chosen for its speed loses a program that takes it longer than this, in multiples of
# onnxruntime's time; the timing of a busy device is not exact.
SLOWER = 1.1
# The fastest of so many runs of each, in turn: other programs disturb some of them.
ROUNDS = 3
# Another round is begun within this time only: a Pi takes seconds for a large block.
MOST_S = 2.0
# Shapes of one program: uneven tiles of a border class differ.
_MOST_SHAPES = 8
_MOST_REFUSED = 256
# Runs waiting to be compared hold their tensors; beyond this, later runs are compared.
_WAITING_BYTES = 64 << 20
_LEAST_SHARE = 16
_TICK_S = 0.5

_Shapes: TypeAlias = tuple[tuple[int, ...], ...]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """A run of a program that onnxruntime made in `seconds`."""

    sha256: str
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    seconds: float

    @property
    def size_bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(array.nbytes for array in (*self.inputs.values(), *self.outputs.values()))


@dataclass(frozen=True, slots=True)
class EngineComparison:
    """`difference` from the expected outputs, of each output's largest magnitude, the worst of all,
    and what the program's precision allows; seconds of a run by the engine and by onnxruntime.
    """

    difference: float
    allowed: float
    engine_s: float
    onnxruntime_s: float

    @property
    def is_right(self) -> bool:
        """Whether the difference is allowed."""
        return self.difference <= self.allowed


def compare_engines(
    engine: Runnable, reference: Runnable, program: Program, run: ReferenceRun
) -> EngineComparison:
    """Runs the program with both on the same inputs, in turn.

    Raises:
        ImbrexError: one of them cannot compute it.
    """
    shapes = {name: array.shape for name, array in run.outputs.items()}
    outputs = engine.bound(run.inputs, shapes).compute()
    model = onnx.ModelProto.FromString(program.graph)
    outputs = {
        name: without_rounding(array, run.outputs[name], rounding_in(model.graph, name))
        for name, array in outputs.items()
    }
    difference = compare(outputs, run.outputs).max_rel_error
    fastest = [math.inf, math.inf]
    began_s = time.monotonic()
    for number in range(ROUNDS):
        if number and time.monotonic() > began_s + MOST_S:
            break
        for side, runnable in enumerate((engine, reference)):
            ready = runnable.bound(run.inputs, shapes)
            before_s = time.perf_counter()
            ready.compute()
            fastest[side] = min(fastest[side], time.perf_counter() - before_s)
    return EngineComparison(difference, of_engine(read_precision(model)), *fastest)


@dataclass(frozen=True, slots=True)
class Standing:
    """How an engine fares next to onnxruntime: it computes `programs`, `speedup` times as fast (0:
    not measured); `refused` names what it does not compute, and why.
    """

    programs: int = 0
    speedup: float = 0.0
    refused: str = ""


@dataclass(slots=True)
class Record:
    """What has been seen of one engine, whose programs may take `room_bytes` of memory: results
    that were right and fast enough, with the seconds of both engines for these, and wrong ones.
    """

    room_bytes: int
    right: int = 0
    wrong: int = 0
    engine_s: float = 0.0
    onnxruntime_s: float = 0.0
    _loaded: list[tuple[weakref.ref[Runnable], int]] = field(default_factory=list)

    def loaded(self, runnable: Runnable, grown_bytes: int) -> None:
        """The process has grown by so much for a program, which counts while that is there."""
        self._loaded = [entry for entry in self._loaded if entry[0]() is not None]
        self._loaded.append((weakref.ref(runnable), grown_bytes))

    def fault(self) -> str:
        """Why the engine as a whole is not to be used; empty: it may be."""
        if self.wrong >= MOST_WRONG and self.wrong > self.right:
            return f"the results of {self.wrong} programs differ from onnxruntime's"
        grown_bytes = sum(size for runnable, size in self._loaded if runnable() is not None)
        if grown_bytes > self.room_bytes:
            return (
                f"its programs take {megabytes(grown_bytes)} of memory, and only "
                f"{megabytes(self.room_bytes)} are left for them"
            )
        return ""


class Verified:
    """`engine` next to `reference`, which is onnxruntime; None: onnxruntime alone, so far."""

    # Whether programs that the engine computes right, but more slowly, stay with onnxruntime.
    is_for_speed = False

    def __init__(self, place: Place, reference: Engine, engine: Engine | None = None) -> None:
        self.traits: Traits = reference.traits
        self._place = place
        self._reference = reference
        self._engine: Engine | None = None
        self._programs = ProgramCache(place.store)
        self._suspects = place.folder / "suspects"
        self._record = Record(engine_cap_bytes(place.memory_bytes))
        # Why engines and programs are refused; runs fail in any thread.
        self._refused_engines: dict[str, str] = {}
        self._refused_programs: OrderedDict[str, str] = OrderedDict()
        self._waiting: SimpleQueue[tuple[VerifiedProgram, ReferenceRun]] = SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        if engine is not None:
            self._use(engine)

    # ------------------------------------------------------------ the interface of engines

    def gflops(self, cores: int, mhz: float) -> float:
        """The engine's estimate."""
        return (self._engine or self._reference).gflops(cores, mhz)

    def memory_bytes(self, allowed_bytes: int) -> int:
        """As for onnxruntime, which prepares every program."""
        return self._reference.memory_bytes(allowed_bytes)

    def is_prepared(self, sha256: str) -> bool:
        """Whether onnxruntime can run the program, and the engine can be given it."""
        return sha256 in self._programs and self._reference.is_prepared(sha256)

    def prepare(self, program: Program) -> None:
        """Prepares the program for onnxruntime."""
        if not self._reference.is_prepared(program.sha256):
            self._reference.prepare(program)
        self._programs.add(program)

    def load(self, sha256: str) -> Runnable | None:
        """The program as onnxruntime runs it, and as the engine does once it has been verified."""
        plain, program = self._reference.load(sha256), self._programs.get(sha256)
        if plain is None or program is None or not (self._compares() and self._takes(program)):
            return plain
        return VerifiedProgram(self, sha256, plain)

    def trial(self, program: Program, weights: Mapping[str, np.ndarray], threads: int) -> Runnable:
        """The program as the engine runs it, or as onnxruntime does where that fails."""
        if self._engine is not None and self._takes(program):
            with suppress(Exception):
                runnable = self._engine.trial(program, weights, threads)
                return _Trial(runnable, self._reference, program, weights, threads)
        return self._reference.trial(program, weights, threads)

    def standing(self) -> Standing:
        """How the engine fares now."""
        record = self._record
        with self._lock:
            refused = [f"{name} is refused: {why}" for name, why in self._refused_engines.items()]
            if self._refused_programs:
                sha256, why = next(reversed(self._refused_programs.items()))
                refused.append(
                    f"onnxruntime computes {len(self._refused_programs)} of its programs, the last "
                    f"because {sha256[:12]} {why}"
                )
        speedup = record.onnxruntime_s / record.engine_s if record.engine_s else 0.0
        return Standing(record.right, speedup, "; ".join(refused))

    def close(self) -> None:
        """Ends the comparisons."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.join()

    # ------------------------------------------------------------ for its programs, in any thread

    def wants(self, sha256: str) -> str:
        """The engine for which runs of this program are wanted; empty: none. Called with every
        task.
        """
        engine = self._engine
        return "" if engine is None or sha256 in self._refused_programs else engine.traits.name

    def offer(self, program: "VerifiedProgram", run: ReferenceRun) -> bool:
        """Takes a run to compare; False if too many wait."""
        with self._lock:
            most = min(_WAITING_BYTES, self._place.memory_bytes // _LEAST_SHARE)
            if self._waiting_bytes and self._waiting_bytes + run.size_bytes > most:
                return False
            self._waiting_bytes += run.size_bytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="engines", daemon=True)
                self._thread.start()
        self._waiting.put((program, run))
        return True

    def refuse(self, sha256: str, why: str) -> None:
        """onnxruntime computes this program from now on."""
        _log.warning("onnxruntime computes a program", program=sha256[:12], cause=why)
        with self._lock:
            while len(self._refused_programs) >= _MOST_REFUSED:
                self._refused_programs.popitem(last=False)
            self._refused_programs[sha256] = why

    # ------------------------------------------------------------ in its thread

    def _work(self) -> None:
        settle_thread(self._place.nice)
        while not self._is_closed:
            try:
                self._take_run()
            except Exception:  # no memory, no process: later runs are compared
                _log.exception("runs cannot be compared")

    def _take_run(self) -> None:
        try:
            program, run = self._waiting.get(timeout=_TICK_S)
        except Empty:
            self._idle()
            return
        with self._lock:
            self._waiting_bytes -= run.size_bytes
        if self._engine is None:
            self._note(run)
        else:
            self._verify(self._engine, program, run)

    def _compares(self) -> bool:
        """Whether there is an engine to compare, now or after a while."""
        return self._engine is not None

    def _note(self, run: ReferenceRun) -> None:
        """Takes a run of onnxruntime's while there is no other engine."""

    def _idle(self) -> None:
        """Is called every `_TICK_S` while no run waits."""

    def _use(self, engine: Engine) -> None:
        fingerprint = f"{engine.traits.fingerprint}|{self._reference.traits.fingerprint}"
        suspects = self._suspected_earlier(fingerprint)
        for sha256 in suspects:
            self.refuse(sha256, "ended the worker when it was prepared")
        if len(suspects) >= MOST_WRONG:
            self._refuse_engine(engine.traits.name, "it has ended the worker several times")
            return
        # onnxruntime takes what the engine does not: all types, with its own precision.
        self.traits = replace(
            self._reference.traits,
            name=engine.traits.name,
            version=engine.traits.version,
            processor=engine.traits.processor,
            fingerprint=fingerprint,
            limits=_limits(engine.traits),
        )
        self._engine = engine

    def _takes(self, program: Program) -> bool:
        """Whether the engine's limits allow this program, as far as a program tells."""
        limits = self.traits.limits
        if limits is None:
            return True
        network = whole_network(program)
        return network is not None and (not limits.networks or network in limits.networks)

    def _verify(self, engine: Engine, target: "VerifiedProgram", run: ReferenceRun) -> None:
        program = self._programs.get(run.sha256)
        if program is None or run.sha256 in self._refused_programs:
            return
        before_bytes = resident_bytes()
        try:
            with self._suspected(run.sha256):
                engine.prepare(program)
                loaded = engine.load(run.sha256)
                if loaded is None:
                    return
                _require_types(engine.traits, loaded)
                seen = compare_engines(loaded, target.plain, program, run)
        except Exception as error:
            self.refuse(run.sha256, f"failed: {error}")
            return
        self._record.loaded(loaded, max(0, resident_bytes() - before_bytes))
        if not seen.is_right:
            self._record.wrong += 1
            self.refuse(run.sha256, f"differs by {seen.difference:.1e} of the largest magnitude")
        elif self.is_for_speed and seen.engine_s > SLOWER * seen.onnxruntime_s:
            times = seen.engine_s / seen.onnxruntime_s
            self.refuse(run.sha256, f"takes {times:.1f} times as long")
        else:
            self._record.right += 1
            self._record.engine_s += seen.engine_s
            self._record.onnxruntime_s += seen.onnxruntime_s
            target.take(engine.traits.name, run, loaded)
        if fault := self._record.fault():
            self._refuse_engine(engine.traits.name, fault)

    def _refuse_engine(self, name: str, why: str) -> None:
        """onnxruntime computes all programs from now on."""
        _log.error("engine refused", engine=name, cause=why)
        with self._lock:
            self._refused_engines[name] = why
        self._engine, self.traits = None, self._reference.traits
        self._record = Record(self._record.room_bytes)

    # ------------------------------------------------------------ what a crash leaves

    def _suspected_earlier(self, fingerprint: str) -> list[str]:
        """The programs that ended earlier processes with this engine; files of others go."""
        programs = []
        with suppress(OSError):
            for file in sorted(self._suspects.iterdir()):
                if file.read_text() == fingerprint:
                    programs.append(file.name)
                else:
                    file.unlink()
        return programs

    @contextmanager
    def _suspected(self, sha256: str) -> Iterator[None]:
        """There is a file while the program is prepared, unless the disk is full."""
        file = self._suspects / sha256
        with suppress(OSError):
            self._suspects.mkdir(parents=True, exist_ok=True)
            file.write_text(self.traits.fingerprint)
        try:
            yield
        finally:
            with suppress(OSError):
                file.unlink()


class _WithFallback(Runnable):
    """A program that an engine runs, and onnxruntime where that fails."""

    def _bound_by(
        self,
        engine: Runnable,
        inputs: Mapping[str, np.ndarray],
        shapes: Mapping[str, tuple[int, ...] | None],
    ) -> Ready[dict[str, np.ndarray]]:
        try:
            ready = engine.bound(inputs, shapes)
        except Exception as error:
            return self._fall_back(error).bound(inputs, shapes)

        def compute() -> dict[str, np.ndarray]:
            try:
                return ready.compute()
            except Exception as error:
                return self._fall_back(error).bound(inputs, shapes).compute()

        return replace(ready, compute=compute)

    @abstractmethod
    def _fall_back(self, error: Exception) -> Runnable:
        """The program as onnxruntime runs it, since the engine failed."""


class VerifiedProgram(_WithFallback):
    """A program of onnxruntime's (`plain`), and the engine's for shapes for which that has been
    verified.
    """

    def __init__(self, owner: Verified, sha256: str, plain: Runnable) -> None:
        super().__init__(plain.inputs, plain.outputs, plain.blobs)
        self.plain = plain
        self._owner = owner
        self._sha256 = sha256
        # The engine that wanted runs last.
        self._engine = ""
        self._verified: dict[tuple[str, _Shapes], Runnable] = {}
        # What has been offered, for which engine.
        self._offered: set[tuple[str, _Shapes]] = set()

    def take(self, engine: str, run: ReferenceRun, runnable: Runnable) -> None:
        """Has the engine of this name compute runs like this one."""
        self._verified[engine, self._shapes(run.inputs)] = runnable

    def _shapes(self, inputs: Mapping[str, np.ndarray]) -> _Shapes:
        return tuple(inputs[name].shape for name in self.inputs)

    def _bind(
        self, inputs: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...] | None]
    ) -> Ready[dict[str, np.ndarray]]:
        if None in shapes.values():  # what depends on values stays with onnxruntime
            return self.plain.bound(inputs, shapes)
        engine = self._owner.wants(self._sha256)
        if engine != self._engine:
            # What another engine has compiled takes memory.
            self._engine = engine
            self._verified.clear()
        key = (engine, self._shapes(inputs))
        if engine and (runnable := self._verified.get(key)) is not None:
            return self._bound_by(runnable, inputs, shapes)
        ready = self.plain.bound(inputs, shapes)
        if not engine or key in self._offered or len(self._offered) >= _MOST_SHAPES:
            return ready

        def compute() -> dict[str, np.ndarray]:
            began_s = time.perf_counter()
            outputs = ready.compute()
            seconds = time.perf_counter() - began_s
            # The inputs are untouched until this returns; the outputs are read only.
            copies = {name: array.copy() for name, array in inputs.items()}
            if self._owner.offer(self, ReferenceRun(self._sha256, copies, outputs, seconds)):
                self._offered.add(key)
            return outputs

        return replace(ready, compute=compute)

    def _fall_back(self, error: Exception) -> Runnable:
        self._owner.refuse(self._sha256, f"failed: {error}")
        return self.plain


class _Trial(_WithFallback):
    """A program to measure the engine with. It takes memory for onnxruntime only if that runs."""

    def __init__(
        self,
        runnable: Runnable,
        reference: Engine,
        program: Program,
        weights: Mapping[str, np.ndarray],
        threads: int,
    ) -> None:
        super().__init__(runnable.inputs, runnable.outputs, runnable.blobs)
        self._runnable = runnable
        self._reference = reference
        self._program = program
        self._weights = weights
        self._threads = threads

    def _bind(
        self, inputs: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...] | None]
    ) -> Ready[dict[str, np.ndarray]]:
        return self._bound_by(self._runnable, inputs, shapes)

    @cached_property
    def _plain(self) -> Runnable:
        return self._reference.trial(self._program, self._weights, self._threads)

    def _fall_back(self, error: Exception) -> Runnable:
        return self._plain


def _limits(traits: Traits) -> Limits | None:
    """The limits with the types that the engine supports."""
    if traits.limits is None or traits.dtypes == ALL_TYPES:
        return traits.limits
    return replace(traits.limits, dtypes=traits.dtypes)


def _require_types(traits: Traits, program: Runnable) -> None:
    signatures = (*program.inputs.values(), *program.outputs.values())
    odd = {str(signature.dtype) for signature in signatures} - traits.dtypes
    if odd:
        raise BadInput(
            cause=f"the engine does not support {', '.join(sorted(odd))}", cure="Use onnxruntime"
        )
