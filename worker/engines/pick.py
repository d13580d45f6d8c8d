"""Which engines a worker computes with: onnxruntime, another one next to it, or the fastest.

The fastest are found when the worker is idle: each engine makes a few runs of the networks in use
in a child process. Those that are faster compute beside onnxruntime, each program by the fastest.
The pick is stored until the processor, an engine or a version changes.
"""

import hashlib
import heapq
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import structlog

from models.cut.program import Program
from models.tensors.memory import engine_cap_bytes, megabytes
from protos.daemon.files import write_atomically
from protos.failures import BadInput
from worker.engines import AUTO
from worker.engines.base import Engine, Place
from worker.engines.comparison import ReferenceRun
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.registry import DEFAULT, candidates, factory_of
from worker.engines.verified import Verified, bytes_of

FILE = "engine.json"
# The runs that took longest tell most; a plan of a deep network has several tens of programs.
MOST_RUNS = 4
# Without a task for so long, the worker is idle.
IDLE_S = 10.0
# An engine that is not faster by this is not worth its memory, nor the profile to be measured.
GAIN = 1.05

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
    return Verified(place, reference, {name: factory_of(name)(place)})


@dataclass(slots=True)
class Pick:
    """The engines, how many times as fast as onnxruntime alone each made the trial's runs, and
    which are refused, and why. `key` names all that the pick depends on.
    """

    key: str
    engines: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class Fastest(Verified):
    """onnxruntime, until some of the engines named in `versions`, with those of packages, have been
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
        self._follow()

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
        _log.info("engines chosen", engines=self._pick.engines)
        self._store()
        self._follow()

    def _try(self, name: str, runs: Sequence[tuple[Program, ReferenceRun]]) -> str:
        """Picks this engine if it is fast; returns why it is refused, or ""."""
        try:
            result = self._trials.result(name, self._place, runs)
        except BadInput as error:
            return error.cause
        finally:
            self._trials.end()
        if isinstance(result, str):
            return result
        if result.wrong:
            return f"its results differ by {result.wrong:.1e} of the largest magnitude"
        # The other programs take their weights at least; in service the sum is watched.
        others = bytes_of(self._programs.all()) - bytes_of([program for program, _ in runs])
        needed, room = result.memory_bytes + others, engine_cap_bytes(self._place.memory_bytes)
        if needed > room:
            return f"the plan's programs need {megabytes(needed)} of {megabytes(room)} with it"
        _log.info("engine tried", engine=name, speedup=round(result.speedup, 2))
        if result.speedup > GAIN:
            self._pick.engines[name] = round(result.speedup, 3)
        return ""

    def _follow(self) -> None:
        """Uses the engines that are picked, the fastest first."""
        with self._lock:
            self._refused_engines |= self._pick.refused
        speedups, engines = self._pick.engines, {}
        for name in sorted(speedups, key=lambda name: -speedups[name]):
            try:
                engines[name] = factory_of(name)(self._place)
            except Exception as error:
                self._refuse_engine(name, str(error))
        self._use(engines)

    def _refuse_engine(self, name: str, why: str) -> None:
        super()._refuse_engine(name, why)
        self._pick.engines.pop(name, None)
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
