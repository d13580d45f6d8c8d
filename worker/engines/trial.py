"""Trials of engines in a child process (`python -m worker.engines.trial`), so that what an engine
breaks or takes is that process's own.
"""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from models.cut.program import Program
from models.tensors.arrays import Arrays
from protos.daemon.parent import PARENT_VARIABLE, follow_parent
from protos.daemon.process_memory import cap_memory, resident_bytes
from protos.errors import BadConfiguration
from protos.failures import BadInput
from protos.wire.convert import dtype_of
from worker.engines.base import Engine, Place, ProgramCache, Runnable, WantedShapes
from worker.engines.comparison import ReferenceRun, compare_engines
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.registry import factory_of
from worker.programs.store import BlobStore

# A trial of one engine: compiling four programs takes a Pi seconds.
MOST_S = 120.0
# Tasks go first.
_NICE = 10
# The key of an answer which says that an engine does not take a program.
_REFUSED = "refused"

Runs = Sequence[tuple[Program, ReferenceRun]]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The worst difference that the program's precision does not allow, of the largest magnitude
    (0: all are allowed); how many times as fast as onnxruntime alone all runs were with the faster
    of both; the memory that the engine takes with their programs.
    """

    wrong: float
    speedup: float
    memory_bytes: int


class Trials:
    """Trials in one child process after the other: it is started when there is none, and goes on
    until `end`. Threads take turns.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._used_s = 0.0
        self._is_closed = False
        self._turns = threading.RLock()

    def result(self, name: str, place: Place, runs: Runs) -> TrialResult | str:
        """What the engine of this name did with these runs, or why there is no result.

        Raises:
            BadInput: it takes none of the programs.
        """
        answer = self._answer(run_trial, name, place, runs)
        return answer if isinstance(answer, str) else TrialResult(**answer)

    def failure(
        self,
        name: str,
        place: Place,
        program: Program,
        inputs: Arrays,
        shapes: WantedShapes | None = None,
    ) -> str:
        """Why the engine of this name cannot compute outputs of these shapes, or "". Without
        shapes, the program is to be measured: weights that are not in the store are of no matter.

        Raises:
            BadInput: it does not take the program.
        """
        answer = self._answer(run_once, name, place, program, inputs, shapes)
        return answer if isinstance(answer, str) else ""

    def _answer(self, job: Callable[..., Any], name: str, place: Place, *operands: Any) -> Any:
        """What a job returns in the child process, or a text that says why it does not."""
        store = BlobStore(place.store.blobs.parent, 0)
        order = pickle.dumps((job, name, replace(place, store=store), *operands), protocol=5)
        with self._turns:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            late = threading.Event()

            def end_late() -> None:
                late.set()
                process.kill()

            limit = threading.Timer(MOST_S, end_late)
            limit.start()
            with suppress(BrokenPipeError):
                process.stdin.write(order)
                process.stdin.flush()
            line = process.stdout.readline()
            limit.cancel()
            self._used_s = time.monotonic()
            if not line:
                why = self._end_of(process)
        if line:
            answer = json.loads(line)
            if isinstance(answer, dict) and _REFUSED in answer:
                raise BadInput(cause=answer[_REFUSED], cure="Use onnxruntime")
            return answer
        return f"its trial took more than {MOST_S:g} s" if late.is_set() else why

    def end(self, unused_s: float = 0.0) -> None:
        """Ends the process, if there is one, unused for so long, and no trial is going on."""
        if not self._turns.acquire(blocking=False):
            return
        try:
            if time.monotonic() < self._used_s + unused_s:
                return
            process, self._process = self._process, None
            if process is not None:
                process.kill()
                process.communicate()
            if self._errors is not None:
                self._errors.close()
                self._errors = None
        finally:
            self._turns.release()

    def close(self) -> None:
        """Ends the trial that is going on, and allows no more; may be called by any thread."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
            self._process = subprocess.Popen(
                (sys.executable, "-m", "worker.engines.trial"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C must reach only the worker
                env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
            )
        if self._is_closed:
            self._process.kill()
        return self._process

    def _end_of(self, process: subprocess.Popen[bytes]) -> str:
        code = process.wait()
        assert self._errors is not None
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        self.end()
        how = f"signal {-code}" if code < 0 else "an error"
        return " ".join((f"its trial ended with {how}", *last))[:400]


def run_trial(name: str, place: Place, runs: Runs) -> dict[str, Any]:
    """Makes the runs, in a process that does nothing else; returns the fields of the result.

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
        refusal: BadInput | None = None
        loaded: list[Runnable] = []  # all in memory, as the programs of a plan
        wrong, onnxruntime_s, fastest_s = 0.0, 0.0, 0.0
        for program, run in runs:
            try:
                runnable = _loaded(engine, program)
                plain = reference.trial(program, cache.weights(program), place.threads)
                seen = compare_engines(runnable, plain, program, run)
            except BadInput as error:  # onnxruntime computes it
                refusal = error
                onnxruntime_s, fastest_s = onnxruntime_s + run.seconds, fastest_s + run.seconds
                continue
            loaded.append(runnable)
            wrong = wrong if seen.is_right else max(wrong, seen.difference)
            onnxruntime_s += seen.onnxruntime_s
            fastest_s += min(seen.engine_s, seen.onnxruntime_s)
        if refusal is not None and not loaded:
            raise refusal
        memory_bytes = max(0, resident_bytes() - before_bytes)
    return asdict(TrialResult(wrong, onnxruntime_s / fastest_s, memory_bytes))


def run_once(
    name: str, place: Place, program: Program, inputs: Arrays, shapes: WantedShapes | None
) -> dict[str, Any]:
    """Makes one run in the same way, as in a task or, without shapes, to be measured; returns
    nothing.

    Raises:
        ImbrexError: the engine is not here, or cannot take the program.
    """
    cap_memory(place.memory_bytes)
    with tempfile.TemporaryDirectory(dir=place.folder, prefix=".trial") as folder:
        place = replace(place, folder=Path(folder))
        engine = factory_of(name)(place)
        if shapes is None:
            stored = replace(program, weights=tuple(ref for ref in program.weights if ref.sha256))
            weights = ProgramCache(place.store).weights(stored)
            for ref in program.weights:
                weights.setdefault(ref.name, np.zeros(ref.dims, dtype_of(ref.data_type)))
            runnable = engine.trial(program, weights, place.threads)
        else:
            runnable = _loaded(engine, program)
        runnable.bound(inputs, shapes or {}).compute()
    return {}


def _loaded(engine: Engine, program: Program) -> Runnable:
    engine.prepare(program)
    loaded = engine.load(program.sha256)
    assert loaded is not None, "it was just prepared"
    return loaded


def main() -> None:
    """Runs the trials on standard input; prints each result, or why there is none, as JSON."""
    follow_parent()
    os.nice(_NICE)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    while True:
        try:
            run, *operands = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
        except EOFError:
            return
        try:
            line = json.dumps(run(*operands))
        except BadInput as error:
            line = json.dumps({_REFUSED: error.cause[:400]})
        except Exception as error:
            line = json.dumps(f"its trial failed: {str(error) or type(error).__name__}"[:400])
        print(line, file=answers, flush=True)


if __name__ == "__main__":
    main()
