"""The throttle of an emulated worker, which computes like a smaller computer. Those of one machine
compute in turns, so that equal kernels take equal time."""

import fcntl
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from imbrex.demo.emulation.rate import Workload, reference, share, warm_s
from imbrex.demo.emulation.settings import Emulation
from imbrex.demo.emulation.whole_maps import ProgramRun, WholeMaps
from models.cut.program import sha256_of
from protos.errors import BadConfiguration, ImbrexError
from worker.compute.compute import REAL, Begin, Clock, Throttle
from worker.engines.base import Ready

T = TypeVar("T")
# So many tasks that run a kernel measure it, each once.
_ENOUGH = 25
# The share of a kernel's paced time that measuring it may take: four workers that meet it at once
# measure it in turns. Its first task measures it in any case.
_SPARE = 0.25
# The whole map of a tile is measured once for so many times that the tile is.
_TILES = 5
# A kernel much shorter than the reference is timed more often at once: up to so often, for the
# time of so many references.
_SHORT, _SHORT_TIME = 9, 4
# Everything that is timed has just run.
_WARM = 2


class Turns:
    """The state shared by workers that name the same folder.

    Raises:
        BadConfiguration: the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise BadConfiguration(
                cause=f"turns: {error}", cure="Name a folder that all these workers may write to"
            ) from error

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While this context is open, no other worker computes."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def kept(self, kernels: tuple[object, ...]) -> list[float]:
        """What any worker has kept of these kernels; call it while holding the turn."""
        # Truncated values: a worker was killed while writing, or the disk was full.
        with suppress(OSError, ValueError):
            return list(map(float, self._file(kernels).read_text().split()))
        return []

    def keep(self, kernels: tuple[object, ...], values: Sequence[float]) -> None:
        """Keeps values of these kernels; none of unknown ones."""
        with suppress(OSError):
            if kernels:
                self._file(kernels).write_text(" ".join(map(repr, values)))

    def _file(self, kernels: tuple[object, ...]) -> Path:
        return self._folder / sha256_of(repr(kernels).encode())

    def close(self) -> None:
        """Releases its resources."""
        os.close(self._lock)


class EmulatedThrottle(Throttle):
    """In addition to the pace: starting a task takes `task_ms`, reading weights takes time, and
    kernels are charged what they take on a core that nothing disturbs (`reference_s`), equal ones
    the same on all workers of this machine (`turns`). If the rates of an emulated device are known,
    they decide the pace of each program.

    Kernels are timed with warm caches if reading weights is charged: a pace would stretch their
    waiting for memory as much as their arithmetic.
    """

    def __init__(self, pace: float, emulation: Emulation, clock: Clock = REAL) -> None:
        super().__init__(pace, clock)
        self._emulation = emulation
        self._turns = Turns(emulation.turns) if emulation.turns else None
        self._wholes = WholeMaps(emulation.turns) if emulation.rates else None
        # By the kernels of the main engine: which of the others is faster, if any is.
        self._fastest: dict[tuple[object, ...], int | None] = {}

    def set_up(self, begin: Begin[T]) -> Ready[T]:
        """Sets up a run unless that was done before, and starts it for the emulated time."""
        ready = begin()
        if self._emulation.task_ms:
            self._clock.sleep_until(self._clock.now_s() + self._emulation.task_ms * 1e-3)
        return ready

    def computed(self, ready: Ready[T]) -> tuple[T, float]:
        """Runs it in its turn, and measures its kernels unless enough is known of them."""
        with self._turns.turn() if self._turns else nullcontext():
            value, seconds = self._kernels(ready)
        return value, seconds + ready.weight_bytes * self._emulation.weight_ns * 1e-9

    def _kernels(self, ready: Ready[T]) -> tuple[T, float]:
        """The result, and the device's seconds but for reading weights, by the engine that takes
        least of these.
        """
        if not (isinstance(ready, ProgramRun) and ready.others):
            return self._charged(ready)
        key = ready.kernels
        if key in self._fastest:
            number = self._fastest[key]
            return self._charged(ready.others[number]() if number is not None else ready)
        value, seconds = self._charged(ready)
        self._fastest[key] = None
        for number, other in enumerate(ready.others):
            with suppress(ImbrexError):  # the engine does not take the program
                other_value, other_s = self._charged(other())
                if other_s < seconds:
                    value, seconds = other_value, other_s
                    self._fastest[key] = number
        return value, seconds

    def _charged(self, ready: Ready[T]) -> tuple[T, float]:
        """The result, and the device's seconds but for reading weights, by one engine."""
        if not self._emulation.reference_s:
            value, cpu_s = self._warm(ready)
            return value, cpu_s / self._pace
        value, core_s = self._core_s(ready)
        if not (
            self._wholes and isinstance(ready, ProgramRun) and (whole := self._wholes.of(ready))
        ):
            return value, core_s / self._pace
        if whole.kernels == ready.kernels:
            return value, whole.seconds
        kept = self._kept(whole.kernels)
        is_due = len(kept) * _TILES < len(self._kept(ready.kernels))
        if not kept or (is_due and self._may_measure(kept, core_s)):
            self._measured(whole.run(ready), kept)
        return value, core_s / self._undisturbed_s(kept) * whole.seconds

    def _core_s(self, ready: Ready[T]) -> tuple[T, float]:
        """The result, and the seconds of a core that nothing disturbs."""
        kept = self._kept(ready.kernels)
        core_s = self._undisturbed_s(kept) if kept else 0.0
        measures = self._may_measure(kept, core_s)
        value = self._measured(ready, kept) if measures else ready.compute()
        return value, self._undisturbed_s(kept)

    def _undisturbed_s(self, kept: Sequence[float]) -> float:
        return statistics.median(kept) * self._emulation.reference_s

    def _kept(self, kernels: tuple[object, ...]) -> list[float]:
        return self._turns.kept(kernels) if self._turns else []

    def _may_measure(self, kept: Sequence[float], core_s: float) -> bool:
        """Whether kernels are unknown, or worth another measurement that no task has to wait for
        while one that takes a core `core_s` is charged.
        """
        if not kept:
            return True
        needed_s = _WARM * (statistics.median(kept) + 2) * self._emulation.reference_s
        return len(kept) < _ENOUGH and needed_s <= _SPARE * core_s / self._pace

    def _measured(self, ready: Ready[T], kept: list[float]) -> T:
        """The result; `kept` gets its time as a multiple of the reference's."""
        before_s = warm_s(self._reference, self._clock.cpu_s)
        value, cpu_s = self._warm(ready)
        times = [cpu_s]
        while len(times) < _SHORT and sum(times) + cpu_s <= _SHORT_TIME * before_s:
            times.append(self._timed(ready)[1])
        after_s = warm_s(self._reference, self._clock.cpu_s)
        kept.append(share(before_s, statistics.median(times), after_s))
        if self._turns:
            self._turns.keep(ready.kernels, kept)
        return value

    def _warm(self, ready: Ready[T]) -> tuple[T, float]:
        """The result and its CPU seconds; with warm caches if reading weights is charged."""
        if self._emulation.weight_ns:
            ready.compute()
        return self._timed(ready)

    def _timed(self, ready: Ready[T]) -> tuple[T, float]:
        """The result and its CPU seconds."""
        before = self._clock.cpu_s()
        value = ready.compute()
        return value, self._clock.cpu_s() - before

    def close(self) -> None:
        """Releases its resources."""
        if self._turns:
            self._turns.close()

    @cached_property
    def _reference(self) -> Workload:
        return reference()
