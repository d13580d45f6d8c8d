"""Which engine is the fastest on this device: tried on a few runs of the networks in use, by a
process of its own for each engine, when the worker is idle. The result is kept until the processor,
an engine or a version changes.
"""

import hashlib
import heapq
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import structlog

from models.cut.program import Program, weight_bytes
from models.tensors.memory import engine_cap_bytes, megabytes
from protos.daemon.files import write_atomically
from worker.engines.base import Maker, Place
from worker.engines.comparison import ReferenceRun
from worker.engines.given import Given
from worker.engines.trial import Trial, Tried

_log = structlog.get_logger()

FILE = "engine.json"
REFERENCE = "onnxruntime"
# The runs that took longest tell most; a plan of a deep network has several tens of programs.
MOST_RUNS = 4
# Without a task for so long, the worker is idle.
IDLE_S = 10.0
# A trial of one engine: compiling four programs takes a Pi seconds.
MOST_S = 120.0
# An engine that is not faster by this is not worth its memory, nor the profile to be measured.
GAIN = 1.05


@dataclass(slots=True)
class Chosen:
    """The engine, how many times as fast as onnxruntime it was, and which are refused, and why.
    `key` names all that the choice depends on.
    """

    key: str
    engine: str = REFERENCE
    speedup: float = 1.0
    refused: dict[str, str] = field(default_factory=dict)


class Choice:
    """A choice among the engines named in `versions`, with those of packages. `maker_of` finds
    their makers; `basis` is what else the timing depends on.
    """

    def __init__(
        self,
        place: Place,
        maker_of: Callable[[str], Maker],
        versions: Mapping[str, str],
        basis: str,
    ) -> None:
        self._place = place
        self._maker_of = maker_of
        self._names = sorted(versions)
        self._cases: list[tuple[float, str, ReferenceRun]] = []
        text = json.dumps([basis, place.threads, sorted(versions.items())])
        key = hashlib.sha256(text.encode()).hexdigest()
        self._file = place.folder / FILE
        kept = _kept(self._file, key)
        self.is_open = kept is None and bool(versions)
        self._chosen = kept or Chosen(key)
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    @property
    def engine(self) -> str:
        """The chosen engine's name."""
        return self._chosen.engine

    @property
    def maker(self) -> Maker | None:
        """The chosen engine's maker; None for onnxruntime.

        Raises:
            BadConfiguration: it cannot be imported.
        """
        return None if self.engine == REFERENCE else self._maker_of(self.engine)

    @property
    def refused(self) -> dict[str, str]:
        """Why engines are refused, by name."""
        return dict(self._chosen.refused)

    def add(self, case: ReferenceRun) -> None:
        """Remembers the run if it is one of those that took longest, each of another program."""
        if any(case.sha256 == sha256 for _, sha256, _ in self._cases):
            return
        heapq.heappush(self._cases, (case.seconds, case.sha256, case))
        if len(self._cases) > MOST_RUNS:
            heapq.heappop(self._cases)

    def is_due(self, idle_s: float) -> bool:
        """Whether to choose now, after so long without a task."""
        return self.is_open and bool(self._cases) and idle_s >= IDLE_S

    def choose(self, given: Given) -> None:
        """Tries every engine, for `MOST_S` each at most, and keeps the result."""
        found = ((given.get(sha256), case) for _, sha256, case in self._cases)
        runs = [(program, case) for program, case in found if program is not None]
        self._cases.clear()
        for name in self._names:
            why = self._try(name, runs, given.programs())
            if self._closed:
                return
            if why:
                self._chosen.refused[name] = why
                _log.error("engine refused", engine=name, cause=why)
        self.is_open = False
        _log.info("engine chosen", engine=self.engine, speedup=round(self._chosen.speedup, 2))
        self._keep()

    def refuse(self, name: str, why: str) -> None:
        """onnxruntime is chosen, because this engine fails in service."""
        self._chosen.engine, self._chosen.speedup = REFERENCE, 1.0
        self._chosen.refused[name] = why
        self._keep()

    def close(self) -> None:
        """Ends a trial."""
        self._closed = True
        if self._process is not None:
            self._process.kill()

    def _try(
        self, name: str, runs: Sequence[tuple[Program, ReferenceRun]], programs: Sequence[Program]
    ) -> str:
        """Chooses this engine if it is the fastest so far; returns why it is refused, or ""."""
        place = self._place
        job = Trial(
            name, place.store.blobs.parent, place.folder, place.threads, place.memory_bytes, runs
        )
        seen = self._tried(job)
        if isinstance(seen, str):
            return seen
        if seen.wrong:
            return f"its results differ by {seen.wrong:.1e} of the largest magnitude"
        in_all = weight_bytes([ref for each in programs for ref in each.weights])
        in_runs = weight_bytes([ref for program, _ in runs for ref in program.weights])
        # The other programs take their weights at least; in service the sum is watched.
        needed = seen.base_bytes + seen.programs_bytes + in_all - in_runs
        room = engine_cap_bytes(place.memory_bytes)
        if needed > room:
            return f"the plan's programs need {megabytes(needed)} of {megabytes(room)} with it"
        speedup = seen.onnxruntime_s / seen.engine_s
        _log.info("engine tried", engine=name, speedup=round(speedup, 2))
        if speedup > max(GAIN, self._chosen.speedup):
            self._chosen.engine, self._chosen.speedup = name, speedup
        return ""

    def _tried(self, job: Trial) -> Tried | str:
        """The findings of a process, or why there are none."""
        data = pickle.dumps(job, protocol=5)
        self._process = subprocess.Popen(
            (sys.executable, "-m", "worker.engines.trial"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach only the worker
        )
        if self._closed:
            self._process.kill()
        try:
            out, told = self._process.communicate(data, MOST_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return f"it took more than {MOST_S:.0f} s for {len(job.runs)} programs"
        if code := self._process.returncode:
            last = told.decode(errors="replace").strip().splitlines()[-1:]
            how = f"signal {-code}" if code < 0 else "an error"
            return " ".join((f"its trial ended with {how}", *last))[:400]
        return Tried(**json.loads(out.splitlines()[-1]))

    def _keep(self) -> None:
        with suppress(OSError):  # the disk is full: choose again after the next start
            write_atomically(self._file, json.dumps(asdict(self._chosen)).encode())


def _kept(file: Path, key: str) -> Chosen | None:
    """The choice that was kept for these engines; None if there is none that can be read."""
    try:
        kept = Chosen(**json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return kept if kept.key == key else None
