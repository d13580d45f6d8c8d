"""Trials of engines in a child process (`python -m worker.engines.trial`), so that what an engine
breaks or takes is that process's own.
"""

import json
import os
import pickle
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from models.cut.program import Program
from protos.daemon.memory_in_use import cap_memory, resident_bytes
from protos.errors import BadConfiguration
from protos.failures import BadInput
from worker.engines.base import Engine, Place, ProgramCache, Runnable
from worker.engines.comparison import ReferenceRun, compare_engines
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.registry import factory_of
from worker.programs.store import BlobStore

# A trial of one engine: compiling four programs takes a Pi seconds.
MOST_S = 120.0
# Tasks go first.
_NICE = 10

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
    until `end`.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._is_closed = False

    def result(self, name: str, place: Place, runs: Runs) -> TrialResult | str:
        """What the engine of this name did with these runs, or why there is no result."""
        store = BlobStore(place.store.blobs.parent, 0)
        job = pickle.dumps((name, replace(place, store=store), runs), protocol=5)
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(job)
            process.stdin.flush()
        if not select.select([process.stdout], [], [], MOST_S)[0]:
            self.end()
            return f"it took more than {MOST_S:.0f} s for {len(runs)} programs"
        line = process.stdout.readline()
        if not line:
            return self._end_of(process)
        answer = json.loads(line)
        return answer if isinstance(answer, str) else TrialResult(**answer)

    def end(self) -> None:
        """Ends the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

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


def run_trial(name: str, place: Place, runs: Runs) -> TrialResult:
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
        refusal: BadInput | None = None
        loaded: list[Runnable] = []  # all in memory, as the programs of a plan
        wrong, onnxruntime_s, fastest_s = 0.0, 0.0, 0.0
        for program, run in runs:
            try:
                loaded.append(_run(engine, program, run))
            except BadInput as error:  # onnxruntime computes it
                refusal = error
                onnxruntime_s, fastest_s = onnxruntime_s + run.seconds, fastest_s + run.seconds
                continue
            plain = reference.trial(program, cache.weights(program), place.threads)
            seen = compare_engines(loaded[-1], plain, program, run)
            wrong = wrong if seen.is_right else max(wrong, seen.difference)
            onnxruntime_s += seen.onnxruntime_s
            fastest_s += min(seen.engine_s, seen.onnxruntime_s)
        if refusal is not None and not loaded:
            raise refusal
        memory_bytes = max(0, resident_bytes() - before_bytes)
    return TrialResult(wrong, onnxruntime_s / fastest_s, memory_bytes)


def _run(engine: Engine, program: Program, run: ReferenceRun) -> Runnable:
    engine.prepare(program)
    loaded = engine.load(program.sha256)
    assert loaded is not None, "it was just prepared"
    shapes = {name: array.shape for name, array in run.outputs.items()}
    loaded.bound(run.inputs, shapes).compute()
    return loaded


def main() -> None:
    """Runs the trials on standard input; prints each result, or why there is none, as JSON."""
    os.nice(_NICE)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
        except EOFError:
            return
        try:
            line = json.dumps(asdict(run_trial(*job)))
        except Exception as error:
            line = json.dumps(f"its trial failed: {str(error) or type(error).__name__}"[:400])
        print(line, file=answers, flush=True)


if __name__ == "__main__":
    main()
