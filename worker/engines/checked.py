"""An engine beside onnxruntime, which computes whatever that engine has not been seen to compute
right.

onnxruntime makes a program's first run for each combination of input shapes. A thread then has the
engine compute the same: it compares the results and times both. From then on the engine computes
such runs. A program that the engine refuses, fails to compute or computes differently stays with
onnxruntime, and several that it computes differently refuse the engine itself. So no answer waits
for a compilation, and none is wrong or lost because of an engine.
"""

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue

import numpy as np
import psutil  # type: ignore[import-untyped, unused-ignore]
import structlog

from models.cut.program import Program, weight_bytes
from models.cut.whole import whole_network
from models.tensors.memory import PROCESS_BYTES, engine_cap_bytes
from protos.failures import BadInput
from protos.wire.limits import ALL_TYPES, Limits
from worker.engines.base import Engine, Maker, Place, Runnable, Traits
from worker.engines.beside import BesideProgram, OrElse
from worker.engines.choice import Choice
from worker.engines.comparison import ReferenceRun, compared
from worker.engines.given import Given
from worker.engines.processor import settle_thread
from worker.engines.suspects import Suspects
from worker.engines.verdicts import MOST_WRONG, Standing, Verdicts

# Runs waiting to be compared hold their tensors; beyond this, later runs are compared.
_WAITING_BYTES = 64 << 20
_LEAST_SHARE = 16
_TICK_S = 0.5

_log = structlog.get_logger()


class Checked:
    """The engine of `make`, or the fastest by a `choice`, beside `reference`.

    Raises:
        BadConfiguration: the engine of `make` cannot be used here.
    """

    def __init__(
        self,
        place: Place,
        reference: Engine,
        make: Maker | None = None,
        choice: Choice | None = None,
    ) -> None:
        self.traits: Traits = reference.traits
        self._place = place
        self._reference = reference
        self._choice = choice
        self._engine: Engine | None = None
        self._given = Given(place.store)
        self._verdicts = Verdicts(engine_cap_bytes(place.memory_bytes), choice is not None)
        self._suspects = Suspects(place.folder / "suspects")
        self._waiting: SimpleQueue[tuple[BesideProgram, ReferenceRun]] = SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._busy_s = time.monotonic()
        # Another engine is tried by another process, with weights of its own.
        self._can_try = True
        self._closed = False
        self._thread: threading.Thread | None = None
        if make is not None:
            self._use(make)
        if choice is not None:
            self._follow(choice)

    # ------------------------------------------------------------ the interface of engines

    def gflops(self, cores: int, mhz: float) -> float:
        """The engine's estimate."""
        return (self._engine or self._reference).gflops(cores, mhz)

    def memory_bytes(self, allowed_bytes: int) -> int:
        """As for onnxruntime, which prepares every program."""
        return self._reference.memory_bytes(allowed_bytes)

    def is_prepared(self, sha256: str) -> bool:
        """Whether onnxruntime can run the program, and the engine can be given it."""
        return sha256 in self._given and self._reference.is_prepared(sha256)

    def prepare(self, program: Program) -> None:
        """Prepares the program for onnxruntime."""
        if not self._reference.is_prepared(program.sha256):
            self._reference.prepare(program)
        self._given.add(program)
        weights = weight_bytes([ref for each in self._given.programs() for ref in each.weights])
        self._can_try = 2 * (PROCESS_BYTES + weights) <= self._place.memory_bytes

    def load(self, sha256: str) -> Runnable | None:
        """The program as onnxruntime runs it, and the engine once it has been checked."""
        loaded, given = self._reference.load(sha256), self._given.get(sha256)
        if loaded is None or given is None or not self._takes(given):
            return loaded
        return BesideProgram(self, sha256, loaded)

    def trial(self, program: Program, weights: Mapping[str, np.ndarray], threads: int) -> Runnable:
        """The program as the engine runs it, or as onnxruntime does where that fails."""
        plain = partial(self._reference.trial, program, weights, threads)
        if self._engine is None or not self._takes(program):
            return plain()
        try:
            return OrElse(self._engine.trial(program, weights, threads), plain)
        except Exception:
            return plain()

    # ------------------------------------------------------------ how it fares

    def standing(self) -> Standing:
        """How the engine fares now."""
        return self._verdicts.standing()

    def close(self) -> None:
        """Ends the comparisons."""
        self._closed = True
        if self._choice is not None:
            self._choice.close()
        if self._thread is not None:
            self._thread.join()

    # ------------------------------------------------------------ for its programs

    def asks(self, sha256: str) -> str:
        """For what a run of this program is to be compared: the engine's name, or "choice"; empty:
        for nothing. Called with every task.
        """
        self._busy_s = time.monotonic()
        engine = self._engine
        if engine is None:
            tries = self._can_try and self._choice is not None and self._choice.is_open
            return "choice" if tries else ""
        return "" if self._verdicts.is_refused(sha256) else engine.traits.name

    def offer(self, program: BesideProgram, case: ReferenceRun) -> bool:
        """Takes a run to compare; False if too many wait. Called in any thread."""
        with self._lock:
            most = min(_WAITING_BYTES, self._place.memory_bytes // _LEAST_SHARE)
            if self._waiting_bytes and self._waiting_bytes + case.size_bytes > most:
                return False
            self._waiting_bytes += case.size_bytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="engines", daemon=True)
                self._thread.start()
        self._waiting.put((program, case))
        return True

    def failed(self, sha256: str, error: Exception) -> None:
        """The engine failed in a run: onnxruntime computes the program from now on."""
        self._verdicts.refuse(sha256, f"failed: {error}")

    # ------------------------------------------------------------ in its thread

    def _work(self) -> None:
        settle_thread(self._place.nice)
        while not self._closed:
            try:
                self._compare_or_choose()
            except Exception:  # no memory, no process: later runs are compared
                _log.exception("runs cannot be compared")

    def _compare_or_choose(self) -> None:
        try:
            program, case = self._waiting.get(timeout=_TICK_S)
        except Empty:
            self._choose_when_idle()
            return
        with self._lock:
            self._waiting_bytes -= case.size_bytes
        if self._engine is not None:
            self._check(self._engine, program, case)
        elif self._choice is not None:
            self._choice.add(case)

    def _choose_when_idle(self) -> None:
        choice = self._choice
        if choice is not None and choice.is_due(time.monotonic() - self._busy_s):
            choice.choose(self._given)
            if not self._closed:
                self._follow(choice)

    def _follow(self, choice: Choice) -> None:
        self._verdicts.refuse_engines(choice.refused)
        try:
            make = choice.maker
            if make is not None:
                self._use(make)
        except Exception as error:
            self._refuse_engine(choice.engine, str(error))

    def _use(self, make: Callable[[Place], Engine]) -> None:
        engine = make(self._place)
        fingerprint = f"{engine.traits.fingerprint}|{self._reference.traits.fingerprint}"
        suspects = self._suspects.found(fingerprint)
        for sha256 in suspects:
            self._verdicts.refuse(sha256, "ended the worker when it was prepared")
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
        file = whole_network(program)
        return file is not None and (not limits.networks or file in limits.networks)

    def _check(self, engine: Engine, program: BesideProgram, case: ReferenceRun) -> None:
        given = self._given.get(case.sha256)
        if given is None or self._verdicts.is_refused(case.sha256):
            return
        before = psutil.Process().memory_info().rss
        try:
            with self._suspects.suspected(case.sha256, self.traits.fingerprint):
                engine.prepare(given)
                loaded = engine.load(case.sha256)
                if loaded is None:
                    return
                _require_types(engine.traits, loaded)
                seen = compared(loaded, program.reference, given, case)
        except Exception as error:
            self.failed(case.sha256, error)
            return
        grown = max(0, psutil.Process().memory_info().rss - before)
        weakref.finalize(loaded, self._verdicts.freed, grown)
        if self._verdicts.judge(case.sha256, seen, grown):
            program.take(engine.traits.name, case, loaded)
        if why := self._verdicts.against_the_engine():
            self._refuse_engine(engine.traits.name, why)

    def _refuse_engine(self, name: str, why: str) -> None:
        self._verdicts.refuse_engine(name, why)
        self._engine, self.traits = None, self._reference.traits
        if self._choice is not None:
            self._choice.refuse(name, why)


def _limits(traits: Traits) -> Limits | None:
    """The limits with the types that the engine supports."""
    if traits.limits is None or traits.dtypes == ALL_TYPES:
        return traits.limits
    return replace(traits.limits, dtypes=traits.dtypes)


def _require_types(traits: Traits, program: Runnable) -> None:
    signatures = (*program.inputs.values(), *program.outputs.values())
    odd = {str(each.dtype) for each in signatures} - traits.dtypes
    if odd:
        raise BadInput(
            cause=f"the engine does not support {', '.join(sorted(odd))}", cure="Use onnxruntime"
        )
