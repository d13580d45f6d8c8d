"""Which engine a worker computes with: onnxruntime, another one next to it, or the fastest.

The fastest is found when the worker is idle: each engine makes a few runs of the networks in use in
a child process of its own (`python -m worker.engines.pick`), so what it breaks or takes is that
process's own. The pick is stored until the processor, an engine or a version changes.
"""

import hashlib
import heapq
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import structlog

from models.cut.program import Program, weight_bytes
from models.tensors.memory import PROCESS_BYTES, engine_cap_bytes, megabytes
from protos.daemon.files import write_atomically
from protos.daemon.memory_in_use import cap_memory, resident_bytes
from protos.errors import BadConfiguration
from worker.engines import AUTO
from worker.engines.base import Engine, Place, ProgramCache, Runnable
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.registry import DEFAULT, candidates, factory_of
from worker.engines.verified import ReferenceRun, Verified, compare_engines
from worker.programs.store import BlobStore

FILE = "engine.json"
# The runs that took longest tell most; a plan of a deep network has several tens of programs.
MOST_RUNS = 4
# Without a task for so long, the worker is idle.
IDLE_S = 10.0
# A trial of one engine: compiling four programs takes a Pi seconds.
MOST_S = 120.0
# An engine that is not faster by this is not worth its memory, nor the profile to be measured.
GAIN = 1.05
# Tasks go first.
_NICE = 10

_log = structlog.get_logger()


def pick_engine(name: str, place: Place) -> Engine:
    """The engine of this name, next to onnxruntime unless it is that; for `auto` the fastest.

    Raises:
        BadConfiguration: there is none, or it cannot be used here.
    """
    reference = OnnxRuntime(place)
    if name == AUTO and (versions := candidates()):
        return Fastest(place, reference, versions)
    if name in (AUTO, DEFAULT):
        return reference
    return Verified(place, reference, factory_of(name)(place))


@dataclass(slots=True)
class Pick:
    """The engine, how many times as fast as onnxruntime it was, and which are refused, and why.
    `key` names all that the pick depends on.
    """

    key: str
    engine: str = DEFAULT
    speedup: float = 1.0
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The worst difference that the program's precision does not allow, of the largest magnitude
    (0: all are allowed); how many times as fast as onnxruntime the engine made all runs; the memory
    that it takes with their programs.
    """

    wrong: float
    speedup: float
    memory_bytes: int


class Fastest(Verified):
    """onnxruntime, until one of the engines named in `versions`, with those of packages, has been
    found to be faster.
    """

    is_for_speed = True

    def __init__(self, place: Place, reference: Engine, versions: Mapping[str, str]) -> None:
        super().__init__(place, reference)
        basis = [reference.traits.fingerprint, place.threads, sorted(versions.items())]
        key = hashlib.sha256(json.dumps(basis).encode()).hexdigest()
        self._file = place.folder / FILE
        stored = _stored(self._file, key)
        self._pick = stored or Pick(key)
        self._untried = sorted(versions) if stored is None else []
        self._longest: list[ReferenceRun] = []
        # Another engine is tried by another process, with weights of its own.
        self._has_room = True
        self._busy_s = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._follow()

    def prepare(self, program: Program) -> None:
        """Prepares the program for onnxruntime."""
        super().prepare(program)
        needed = 2 * (PROCESS_BYTES + _weights(self._programs.all()))
        self._has_room = needed <= self._place.memory_bytes

    def wants(self, sha256: str) -> str:
        """The engine for which runs of this program are wanted; `auto`: to find one."""
        self._busy_s = time.monotonic()
        return AUTO if self._untried and self._has_room else super().wants(sha256)

    def close(self) -> None:
        """Ends trials and comparisons."""
        self._is_closed = True
        if self._process is not None:
            self._process.kill()
        super().close()

    def _compares(self) -> bool:
        return bool(self._untried) or super()._compares()

    def _note(self, run: ReferenceRun) -> None:
        """Remembers the run if it is one of those that took longest, each of another program."""
        if all(run.sha256 != other.sha256 for other in self._longest):
            runs = [*self._longest, run]
            self._longest = heapq.nlargest(MOST_RUNS, runs, key=lambda run: run.seconds)

    def _idle(self) -> None:
        """Tries every engine, and stores the pick."""
        if not (self._untried and self._longest and time.monotonic() > self._busy_s + IDLE_S):
            return
        pairs = [(self._programs.get(run.sha256), run) for run in self._longest]
        runs = [(program, run) for program, run in pairs if program is not None]
        self._longest.clear()
        for name in self._untried:
            why = self._try(name, runs)
            if self._is_closed:
                return
            if why:
                self._pick.refused[name] = why
                _log.error("engine refused", engine=name, cause=why)
        self._untried = []
        _log.info("engine chosen", engine=self._pick.engine, speedup=round(self._pick.speedup, 2))
        self._store()
        self._follow()

    def _try(self, name: str, runs: Sequence[tuple[Program, ReferenceRun]]) -> str:
        """Picks this engine if it is the fastest so far; returns why it is refused, or ""."""
        result = self._trial(name, runs)
        if isinstance(result, str):
            return result
        if result.wrong:
            return f"its results differ by {result.wrong:.1e} of the largest magnitude"
        # The other programs take their weights at least; in service the sum is watched.
        others = _weights(self._programs.all()) - _weights([program for program, _ in runs])
        needed, room = result.memory_bytes + others, engine_cap_bytes(self._place.memory_bytes)
        if needed > room:
            return f"the plan's programs need {megabytes(needed)} of {megabytes(room)} with it"
        _log.info("engine tried", engine=name, speedup=round(result.speedup, 2))
        if result.speedup > max(GAIN, self._pick.speedup):
            self._pick.engine, self._pick.speedup = name, result.speedup
        return ""

    def _trial(self, name: str, runs: Sequence[tuple[Program, ReferenceRun]]) -> TrialResult | str:
        """The result of a child process, or why there is none."""
        store = BlobStore(self._place.store.blobs.parent, 0)
        job = pickle.dumps((name, replace(self._place, store=store), runs), protocol=5)
        self._process = subprocess.Popen(
            (sys.executable, "-m", "worker.engines.pick"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach only the worker
        )
        if self._is_closed:
            self._process.kill()
        try:
            output, errors = self._process.communicate(job, MOST_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return f"it took more than {MOST_S:.0f} s for {len(runs)} programs"
        if code := self._process.returncode:
            last = errors.decode(errors="replace").strip().splitlines()[-1:]
            how = f"signal {-code}" if code < 0 else "an error"
            return " ".join((f"its trial ended with {how}", *last))[:400]
        return TrialResult(**json.loads(output.splitlines()[-1]))

    def _follow(self) -> None:
        """Uses the engine that is picked."""
        with self._lock:
            self._refused_engines |= self._pick.refused
        name = self._pick.engine
        if name != DEFAULT:
            try:
                self._use(factory_of(name)(self._place))
            except Exception as error:
                self._refuse_engine(name, str(error))

    def _refuse_engine(self, name: str, why: str) -> None:
        super()._refuse_engine(name, why)
        self._pick.engine, self._pick.speedup = DEFAULT, 1.0
        self._pick.refused[name] = why
        self._store()

    def _store(self) -> None:
        with suppress(OSError):  # the disk is full: pick again after the next start
            write_atomically(self._file, json.dumps(asdict(self._pick)).encode())


def _stored(file: Path, key: str) -> Pick | None:
    """The pick that was stored for these engines; None if there is none that can be read."""
    try:
        pick = Pick(**json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return pick if pick.key == key else None


def _weights(programs: Sequence[Program]) -> int:
    """Bytes of the weights of all these, equal ones once."""
    return weight_bytes([ref for program in programs for ref in program.weights])


def run_trial(name: str, place: Place, runs: Sequence[tuple[Program, ReferenceRun]]) -> TrialResult:
    """Makes the runs, in a process that does nothing else.

    Raises:
        ImbrexError: the engine is not here, cannot take a program, or takes no parts of networks.
    """
    cap_memory(place.memory_bytes)
    with tempfile.TemporaryDirectory(dir=place.folder, prefix=".trial") as folder:
        place = replace(place, folder=Path(folder))
        reference, cache = OnnxRuntime(place), ProgramCache(place.store)
        before_bytes = resident_bytes()
        engine = factory_of(name)(place)
        if engine.traits.limits is not None:
            raise BadConfiguration(
                cause="it computes whole networks only",
                cure=f"Set engine = {name} to have this device take nothing else",
            )
        _run(engine, *runs[0])  # its threads and kernels, once
        memory_bytes = max(0, resident_bytes() - before_bytes)
        seen, loaded = [], []
        for program, run in runs:
            before_bytes = resident_bytes()
            loaded.append(_run(engine, program, run))  # all in memory, as the programs of a plan
            memory_bytes += max(0, resident_bytes() - before_bytes)
            plain = reference.trial(program, cache.weights(program), place.threads)
            seen.append(compare_engines(loaded[-1], plain, program, run))
    wrong = max((result.difference for result in seen if not result.is_right), default=0.0)
    onnxruntime_s = sum(result.onnxruntime_s for result in seen)
    return TrialResult(wrong, onnxruntime_s / sum(result.engine_s for result in seen), memory_bytes)


def _run(engine: Engine, program: Program, run: ReferenceRun) -> Runnable:
    engine.prepare(program)
    loaded = engine.load(program.sha256)
    assert loaded is not None, "it was just prepared"
    shapes = {name: array.shape for name, array in run.outputs.items()}
    loaded.bound(run.inputs, shapes).compute()
    return loaded


def main() -> None:
    """Runs the trial on standard input; prints its result as JSON."""
    os.nice(_NICE)
    job = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
    print(json.dumps(asdict(run_trial(*job))))


if __name__ == "__main__":
    main()
