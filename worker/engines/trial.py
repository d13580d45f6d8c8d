"""The process that tries one engine on a few runs: what it breaks or takes is this process' own.

A job arrives on standard input, the findings leave on standard output as JSON.
"""

import json
import os
import pickle
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

from models.cut.program import Program
from protos.daemon.memory_in_use import cap_memory
from protos.errors import BadConfiguration
from worker.engines.base import Engine, Place, Runnable
from worker.engines.comparison import ReferenceRun, compared
from worker.engines.given import Given
from worker.engines.onnxruntime import OnnxRuntime
from worker.programs.store import BlobStore

# Tasks go first.
_NICE = 10


@dataclass(frozen=True, slots=True)
class Trial:
    """Runs of programs to make with the engine of this name. `store` is the folder of the worker's
    weights, `folder` that of its engines, `memory_bytes` what it may use.
    """

    engine: str
    store: Path
    folder: Path
    threads: int
    memory_bytes: int
    runs: Sequence[tuple[Program, ReferenceRun]]


@dataclass(frozen=True, slots=True)
class Tried:
    """The worst difference that the program's precision does not allow, of the largest magnitude
    (0: all are allowed); the seconds of all runs by the engine and by onnxruntime; the memory of
    the engine by itself and of the programs in it.
    """

    wrong: float
    engine_s: float
    onnxruntime_s: float
    base_bytes: int
    programs_bytes: int


def tried(job: Trial) -> Tried:
    """Makes the runs.

    Raises:
        ImbrexError: the engine is not here, cannot take a program, or takes no parts of networks.
    """
    from worker.engines.registry import raw_maker

    cap_memory(job.memory_bytes)
    with tempfile.TemporaryDirectory(dir=job.folder, prefix=".trial") as folder:
        store = BlobStore(job.store, 0)
        place = Place(Path(folder), store, job.threads, job.memory_bytes)
        reference = OnnxRuntime(place)
        given = Given(store)
        start = _resident_bytes()
        engine = raw_maker(job.engine)(place)
        if engine.traits.limits is not None:
            raise BadConfiguration(
                cause="it computes whole networks only",
                cure=f"Set engine = {job.engine} to have this device take nothing else",
            )
        _run(engine, *job.runs[0])  # its threads and kernels, once
        base = _resident_bytes()
        grown, seen, together = 0, [], []
        for program, case in job.runs:
            before = _resident_bytes()
            loaded = _run(engine, program, case)
            together.append(loaded)  # as the programs of a plan are in memory
            grown += max(0, _resident_bytes() - before)
            plain = reference.trial(program, given.weights(program), job.threads)
            seen.append(compared(loaded, plain, program, case))
        return Tried(
            max((each.difference for each in seen if not each.is_right), default=0.0),
            sum(each.engine_s for each in seen),
            sum(each.onnxruntime_s for each in seen),
            max(0, base - start),
            grown,
        )


def _run(engine: Engine, program: Program, case: ReferenceRun) -> Runnable:
    engine.prepare(program)
    loaded = engine.load(program.sha256)
    assert loaded is not None, "it was just prepared"
    shapes = {name: array.shape for name, array in case.outputs.items()}
    loaded.bound(case.inputs, shapes).compute()
    return loaded


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def main() -> None:
    """Does one job."""
    os.nice(_NICE)
    job = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
    print(json.dumps(asdict(tried(job))))


if __name__ == "__main__":
    main()
