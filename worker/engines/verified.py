"""Runs a second engine beside onnxruntime, for programs only whose results have matched.

onnxruntime makes a program's first run for each combination of input shapes. A thread then has the
engine compute the same: it compares the results and times both. From then on the engine computes
such runs. A program that the engine refuses, fails to compute or computes differently stays with
onnxruntime, and several that it computes differently refuse the engine itself. So no answer waits
for a compilation, and none is wrong or lost because of an engine. Of several engines, each program
gets the fastest.

An engine that may crash makes its first run of a program in another process. While a program is
prepared for the engine here, a file names it: if that ends the process, the next one leaves the
program to onnxruntime.
"""

import threading
import time
import weakref
from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import structlog

from models.cut.program import Program, weight_bytes, whole_network
from models.tensors.arrays import Arrays
from models.tensors.memory import PROCESS_BYTES, engine_cap_bytes, megabytes
from protos.daemon.process_memory import resident_bytes
from protos.errors import ImbrexError
from protos.failures import BadInput, RunError
from protos.wire.facts import EngineShare, KeptPrograms
from protos.wire.limits import ALL_TYPES, Limits
from worker.engines import AUTO
from worker.engines.base import (
    Engine,
    Place,
    ProgramCache,
    Ready,
    Runnable,
    Traits,
    Trial,
    WantedShapes,
)
from worker.engines.comparison import EngineComparison, ReferenceRun, compare_engines
from worker.engines.processor import settle_thread
from worker.engines.trial import Trials

# So many programs with wrong results, more than right ones, are not the conversion of one.
MOST_WRONG = 3
# An engine chosen for its speed loses a program that takes it longer than this, in multiples of
# onnxruntime's time.
SLOWER = 1.0
# A pause between requests, and how long one is waited for.
PAUSE_S, MOST_WAIT_S = 0.1, 2.0
# Shapes of one program: uneven tiles of a border class differ.
_MOST_SHAPES = 8
_MOST_REFUSED = 256
_MOST_TRIED = 16384
# Why onnxruntime keeps programs: those of most programs are told.
MOST_REASONS = 16
# Runs waiting to be compared hold their tensors; beyond this, later runs are compared.
_WAITING_BYTES = 64 << 20
_LEAST_SHARE = 16
_TICK_S = 0.5
# The process that tries programs ends after so long: a slow plan's first runs are seconds apart.
_UNUSED_S = 5.0
_NO_ROOM = "needs memory for another process that tries it"

_Shapes: TypeAlias = tuple[tuple[int, ...], ...]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Standing:
    """How engines fare next to onnxruntime: what each computes, `speedup` times as fast together
    (0: not measured), the programs that onnxruntime keeps though nothing is wrong, by reason, and
    what is wrong.
    """

    engines: tuple[EngineShare, ...] = ()
    speedup: float = 0.0
    kept: tuple[KeptPrograms, ...] = ()
    refused: str = ""

    @property
    def programs(self) -> int:
        """Those that are not computed by onnxruntime."""
        return sum(share.programs for share in self.engines)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Why onnxruntime computes a program: something is wrong with another engine (`is_fault`), it
    does not know how to compute it (`is_lacking`), or it is no gain.
    """

    why: str
    is_fault: bool = False
    is_lacking: bool = False


@dataclass(slots=True)
class Record:
    """What has been seen of one engine, whose programs may take `room_bytes` of memory: right and
    wrong results, and the programs that it computes (SHA-256), with its seconds and onnxruntime's
    for these.
    """

    room_bytes: int
    right: int = 0
    wrong: int = 0
    taken: set[str] = field(default_factory=set)
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
    """`engines`, by the names that they are chosen by, next to `reference`, which is onnxruntime;
    none: onnxruntime alone, so far.
    """

    # Whether programs that an engine computes right, but more slowly, stay with onnxruntime.
    is_for_speed = False

    def __init__(
        self, place: Place, reference: Engine, engines: Mapping[str, Engine] = MappingProxyType({})
    ) -> None:
        self.traits: Traits = reference.traits
        self._place = place
        self._reference = reference
        self._engines: dict[str, Engine] = {}
        # Engines of which it is still to be found out whether they are faster.
        self._untried: list[str] = []
        self._programs = ProgramCache(place.store)
        self._suspects = place.folder / "suspects"
        # Trials are made by another process, with weights of its own.
        self._trials = Trials()
        # What they have run, by engine, program and shapes.
        self._tried: set[tuple[str, str, _Shapes]] = set()
        self._has_room = True
        self._records: dict[str, Record] = {}
        # Why engines and programs are refused; runs fail in any thread.
        self._refused_engines: dict[str, str] = {}
        self._refused_programs: OrderedDict[str, _Kept] = OrderedDict()
        self._waiting: SimpleQueue[tuple[VerifiedProgram, ReferenceRun]] = SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._busy_s = 0.0
        self._is_closed = False
        self._thread: threading.Thread | None = None
        if engines:
            self._use(engines)

    # ------------------------------------------------------------ the interface of engines

    def gflops(self, cores: int, mhz: float) -> float:
        """The first engine's estimate."""
        return next(iter((*self._engines.values(), self._reference))).gflops(cores, mhz)

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
        needed = 2 * (PROCESS_BYTES + bytes_of(self._programs.all()))
        self._has_room = needed <= self._place.memory_bytes

    def load(self, sha256: str) -> Runnable | None:
        """The program as onnxruntime runs it, and as the engine does once it has been verified."""
        plain, program = self._reference.load(sha256), self._programs.get(sha256)
        if plain is None or program is None or not (self._compares() and self._takes(program)):
            return plain
        return VerifiedProgram(self, sha256, plain)

    def trial(self, program: Program, weights: Arrays, threads: int) -> Runnable:
        """The program as the engine runs it, or as onnxruntime does where that fails, and where
        engines are for speed.
        """
        if not self.is_for_speed and self._takes(program):
            for name in self._engines:
                with suppress(Exception):
                    runnable = self._tried_first(name, program, weights, threads)
                    return _Trial(runnable, self._reference, program, weights, threads)
        return self._reference.trial(program, weights, threads)

    @property
    def trials(self) -> Mapping[str, Trial]:
        """Trials of the engines that may compute a program, by name: of the engine itself, which
        falls back to onnxruntime, or where engines are for speed, of onnxruntime and each of them.
        """
        if self._engines and not self.is_for_speed:
            return {next(iter(self._engines)): self.trial}
        trials = {name: partial(self._tried_first, name) for name in self._engines}
        return {self._reference.traits.name: self._reference.trial, **trials}

    def standing(self) -> Standing:
        """How the engines fare now."""
        records = [(name, record) for name, record in [*self._records.items()] if record.taken]
        shares = tuple(
            EngineShare(name, len(record.taken), record.onnxruntime_s / record.engine_s)
            for name, record in records
        )
        onnxruntime_s = sum(record.onnxruntime_s for _, record in records)
        speedup = onnxruntime_s / sum(record.engine_s for _, record in records) if records else 0.0
        with self._lock:
            refused = [f"{name} is refused: {why}" for name, why in self._refused_engines.items()]
            programs = list(self._refused_programs.items())
        faults = [(sha256, kept.why) for sha256, kept in programs if kept.is_fault]
        if faults:
            refused.append(
                f"onnxruntime computes {len(faults)} of its programs, the last because "
                f"{faults[-1][0][:12]} {faults[-1][1]}"
            )
        reasons = Counter(kept for _, kept in programs if not kept.is_fault)
        kept = tuple(
            KeptPrograms(reason.why, count, reason.is_lacking)
            for reason, count in reasons.most_common(MOST_REASONS)
        )
        return Standing(shares, speedup, kept, "; ".join(refused))

    def close(self) -> None:
        """Ends trials and comparisons."""
        self._is_closed = True
        self._trials.close()
        if self._thread is not None:
            self._thread.join()
        self._trials.end()

    # ------------------------------------------------------------ for its programs, in any thread

    def wants(self, sha256: str) -> str:
        """The engines for which runs of this program are wanted; empty: none; `auto`: to find some.
        Called with every task.
        """
        self._busy_s = time.monotonic()
        if self._untried and self._has_room:
            return AUTO
        return "" if sha256 in self._refused_programs else "+".join(self._engines)

    def offer(self, program: "VerifiedProgram", run: ReferenceRun) -> bool:
        """Takes a run to compare; False if too many wait."""
        with self._lock:
            most = min(_WAITING_BYTES, self._place.memory_bytes // _LEAST_SHARE)
            if self._waiting_bytes and self._waiting_bytes + run.size_bytes > most:
                return False
            self._waiting_bytes += run.size_bytes
        self._start()
        self._waiting.put((program, run))
        return True

    def refuse(self, sha256: str, why: str) -> None:
        """onnxruntime computes this program from now on, since something is wrong."""
        _log.warning("onnxruntime computes a program", program=sha256[:12], cause=why)
        self._keep(sha256, _Kept(why, is_fault=True))

    def _keep(self, sha256: str, kept: _Kept) -> None:
        with self._lock:
            while len(self._refused_programs) >= _MOST_REFUSED:
                self._refused_programs.popitem(last=False)
            self._refused_programs[sha256] = kept

    # ------------------------------------------------------------ for what is measured

    def _tried_first(self, name: str, program: Program, weights: Arrays, threads: int) -> Runnable:
        """The program as an engine runs it, after another process if the engine may crash."""
        engine = self._engines[name]
        runnable = engine.trial(program, weights, threads)
        return (
            _Tried(self, name, runnable, program, threads) if engine.traits.may_crash else runnable
        )

    def try_first(self, name: str, program: Program, inputs: Arrays, threads: int) -> None:
        """Has another process run a program by an engine.

        Raises:
            BadInput, RunError: it does not take or compute it.
        """
        why = _NO_ROOM
        if self._has_room:
            self._start()  # to end that process
            place = replace(self._place, threads=threads)
            why = self._trials.failure(name, place, program, inputs)
        if why:
            raise RunError(cause=f"{name}: {why}", cure="Use onnxruntime")

    # ------------------------------------------------------------ in its thread

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="engines", daemon=True)
                self._thread.start()

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
            self._trials.end(_UNUSED_S)
            self._idle()
            return
        with self._lock:
            self._waiting_bytes -= run.size_bytes
        if self._engines:
            self._verify(program, run)
        else:
            self._note(run)

    def _compares(self) -> bool:
        """Whether there is an engine to compare, now or after a while."""
        return bool(self._engines or self._untried)

    def _note(self, run: ReferenceRun) -> None:
        """Takes a run of onnxruntime's while there is no other engine."""

    def _idle(self) -> None:
        """Is called every `_TICK_S` while no run waits."""

    def _use(self, engines: Mapping[str, Engine]) -> None:
        # The programs that ended earlier processes, each with the fingerprint of the engine,
        # which is one of these; files of others go.
        fingerprints = {*map(self._fingerprint, engines.values())}
        suspects = {}
        with suppress(OSError):
            for file in sorted(self._suspects.iterdir()):
                fingerprint = file.read_text()
                if fingerprint in fingerprints:
                    suspects[file.name] = fingerprint
                else:
                    file.unlink()
        for sha256 in suspects:
            self.refuse(sha256, "ended the worker when it was prepared")
        crashes, room_bytes = Counter(suspects.values()), engine_cap_bytes(self._place.memory_bytes)
        self._records = {name: Record(room_bytes) for name in engines}
        self._work_with(engines)
        for name, engine in engines.items():
            if crashes[self._fingerprint(engine)] >= MOST_WRONG:
                self._refuse_engine(name, "it has ended the worker several times")

    def _work_with(self, engines: Mapping[str, Engine]) -> None:
        """Has these engines compute."""
        self._engines, self.traits = dict(engines), self._reference.traits
        every = [engine.traits for engine in engines.values()]
        if every:
            # onnxruntime takes what an engine does not: all types, with its own precision.
            self.traits = replace(
                self._reference.traits,
                name="+".join(traits.name for traits in every),
                version="+".join(traits.version for traits in every),
                processor=every[0].processor,
                fingerprint="|".join(map(self._fingerprint, engines.values())),
                limits=_limits(every[0]),
            )

    def _fingerprint(self, engine: Engine) -> str:
        return f"{engine.traits.fingerprint}|{self._reference.traits.fingerprint}"

    def _takes(self, program: Program) -> bool:
        """Whether the engine's limits allow this program, as far as a program tells."""
        limits = self.traits.limits
        if limits is None:
            return True
        network = whole_network(program)
        return network is not None and (not limits.networks or network in limits.networks)

    def _verify(self, target: "VerifiedProgram", run: ReferenceRun) -> None:
        """Has the fastest engine that is right compute runs like this one."""
        program, names = self._programs.get(run.sha256), "+".join(self._engines)
        if program is None or run.sha256 in self._refused_programs:
            return
        compared: list[tuple[EngineComparison, Record, Runnable]] = []
        kept: list[_Kept] = []
        for name in self._engines:
            outcome = self._compared(name, target.plain, program, run)
            if isinstance(outcome, _Kept):
                kept.append(outcome)
            else:
                compared.append((outcome[0], self._records[name], outcome[1]))
        if not compared:
            worst = max(kept, key=lambda entry: entry.is_fault)
            if worst.is_fault:
                self.refuse(run.sha256, worst.why)
            else:
                self._keep(run.sha256, worst)
        else:
            seen, record, loaded = min(compared, key=lambda entry: entry[0].times)
            record.taken.add(run.sha256)
            record.engine_s += seen.engine_s
            record.onnxruntime_s += seen.onnxruntime_s
            target.take(names, run, loaded)
        for name, record in list(self._records.items()):
            if fault := record.fault():
                self._refuse_engine(name, fault)

    def _compared(
        self, name: str, plain: Runnable, program: Program, run: ReferenceRun
    ) -> tuple[EngineComparison, Runnable] | _Kept:
        """An engine's run and its program, or why it does not compute it."""
        engine, record = self._engines[name], self._records[name]
        if engine.traits.may_crash and not self._has_room:
            return _Kept(f"{name} {_NO_ROOM}")
        try:
            if engine.traits.may_crash:
                self._try_run(name, program, run)
                self._await_pause()
            before_bytes = resident_bytes()
            with self._suspected(engine, run.sha256):
                engine.prepare(program)
                loaded = engine.load(run.sha256)
                if loaded is None:
                    raise RunError(cause="it is gone", cure="See this worker's log")
                _require_types(engine.traits, loaded)
                chooses = self.is_for_speed or len(self._engines) > 1
                seen = compare_engines(loaded, plain, program, run, is_choice=chooses)
        except BadInput as error:
            return _Kept(error.cause, is_lacking=True)
        except Exception as error:
            return _Kept(f"failed: {error}", is_fault=True)
        record.loaded(loaded, max(0, resident_bytes() - before_bytes))
        if not seen.is_right:
            record.wrong += 1
            why = f"differs by {seen.difference:.1e} of the largest magnitude"
            return _Kept(why, is_fault=True)
        record.right += 1
        if self.is_for_speed and seen.times > SLOWER:
            return _Kept(f"{name} is not faster")
        return seen, loaded

    def _try_run(self, name: str, program: Program, run: ReferenceRun) -> None:
        """Has another process make the run first, unless it has: plans come back.

        Raises:
            BadInput, RunError: the engine does not take or compute it.
        """
        key = name, run.sha256, tuple(run.inputs[tensor].shape for tensor in sorted(run.inputs))
        if key in self._tried:
            return
        shapes = {tensor: array.shape for tensor, array in run.outputs.items()}
        if why := self._trials.failure(name, self._place, program, run.inputs, shapes):
            raise RunError(cause=why, cure="See this worker's log")
        if len(self._tried) >= _MOST_TRIED:
            self._tried.clear()
        self._tried.add(key)

    def _await_pause(self) -> None:
        """Waits until no task has begun for a moment, or for long enough: an engine that loads a
        program may hold up Python's other threads.
        """
        until_s = time.monotonic() + MOST_WAIT_S
        while not self._is_closed:
            left_s = min(until_s, self._busy_s + PAUSE_S) - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(left_s)  # of a pause, unless another task begins

    def _refuse_engine(self, name: str, why: str) -> None:
        """The others, or onnxruntime, compute all programs from now on."""
        _log.error("engine refused", engine=name, cause=why)
        with self._lock:
            self._refused_engines[name] = why
        self._records.pop(name, None)
        self._work_with({other: self._engines[other] for other in self._engines if other != name})

    # ------------------------------------------------------------ what a crash leaves

    @contextmanager
    def _suspected(self, engine: Engine, sha256: str) -> Iterator[None]:
        """There is a file while the program is prepared, unless the disk is full."""
        file = self._suspects / sha256
        with suppress(OSError):
            self._suspects.mkdir(parents=True, exist_ok=True)
            file.write_text(self._fingerprint(engine))
        try:
            yield
        finally:
            with suppress(OSError):
                file.unlink()


class _WithFallback(Runnable):
    """A program that an engine runs, and onnxruntime where that fails."""

    def _bound_by(
        self, engine: Runnable, inputs: Arrays, shapes: WantedShapes
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
        # The engines that wanted runs last.
        self._engine = ""
        self._verified: dict[tuple[str, _Shapes], Runnable] = {}
        # What has been offered, for which engine.
        self._offered: set[tuple[str, _Shapes]] = set()

    def take(self, engines: str, run: ReferenceRun, runnable: Runnable) -> None:
        """Has the fastest of the engines of these names compute runs like this one."""
        sizes = tuple(run.inputs[name].shape for name in self.inputs)
        self._verified[engines, sizes] = runnable

    def _bind(self, inputs: Arrays, shapes: WantedShapes) -> Ready[dict[str, np.ndarray]]:
        if None in shapes.values():  # what depends on values stays with onnxruntime
            return self.plain.bound(inputs, shapes)
        engine = self._owner.wants(self._sha256)
        if engine != self._engine:
            # What another engine has compiled takes memory.
            self._engine = engine
            self._verified.clear()
        key = engine, tuple(inputs[name].shape for name in self.inputs)
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
        self, runnable: Runnable, reference: Engine, program: Program, weights: Arrays, threads: int
    ) -> None:
        super().__init__(runnable.inputs, runnable.outputs, runnable.blobs)
        self._runnable = runnable
        self._reference = reference
        self._program = program
        self._weights = weights
        self._threads = threads

    def _bind(self, inputs: Arrays, shapes: WantedShapes) -> Ready[dict[str, np.ndarray]]:
        return self._bound_by(self._runnable, inputs, shapes)

    @cached_property
    def _plain(self) -> Runnable:
        return self._reference.trial(self._program, self._weights, self._threads)

    def _fall_back(self, error: Exception) -> Runnable:
        return self._plain


class _Tried(Runnable):
    """A program to measure an engine with, which another process runs first."""

    def __init__(
        self, owner: Verified, name: str, runnable: Runnable, program: Program, threads: int
    ) -> None:
        super().__init__(runnable.inputs, runnable.outputs, runnable.blobs)
        self._owner = owner
        self._name = name
        self._runnable = runnable
        self._program = program
        self._threads = threads
        self._errors: dict[_Shapes, ImbrexError | None] = {}

    def _bind(self, inputs: Arrays, shapes: WantedShapes) -> Ready[dict[str, np.ndarray]]:
        key = tuple(inputs[name].shape for name in self.inputs)
        if key not in self._errors:
            self._errors[key] = None
            try:
                self._owner.try_first(self._name, self._program, inputs, self._threads)
            except ImbrexError as error:
                self._errors[key] = error
                _log.warning("an engine is not measured", cause=error.cause)
        earlier = self._errors[key]
        if earlier is not None:
            raise earlier
        return self._runnable.bound(inputs, shapes)


def bytes_of(programs: Sequence[Program]) -> int:
    """Bytes of the weights of all these, equal ones once."""
    return weight_bytes([ref for program in programs for ref in program.weights])


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
