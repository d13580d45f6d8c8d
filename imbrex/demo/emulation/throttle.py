"""The throttle of an emulated worker, which computes like a smaller computer."""

from __future__ import annotations

import statistics
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TypeVar

from imbrex.demo.emulation.rate import Run, reference, share, warm_s
from imbrex.demo.emulation.settings import Emulation
from imbrex.demo.emulation.turns import Turns
from worker.compute import REAL, Clock, Throttle, Work
from worker.engines.base import Ready

T = TypeVar("T")
# A kernel is measured so often when it is met first, and in all.
_FIRST, _ENOUGH = 9, 25
# The share of a kernel's paced time that measuring it again may take.
_SPARE = 0.125
# Everything that is timed has just run.
_WARM = 2


class EmulatedThrottle(Throttle):
    """In addition to the pace: setting a task up takes `task_ms`, reading weights takes time, and
    kernels are charged what they take on a core that nothing disturbs (`reference_s`), equal ones
    the same on all workers of this machine (`turns`).

    Kernels are timed with warm caches if reading weights is charged: a pace would stretch their
    waiting for memory as much as their arithmetic.
    """

    def __init__(self, pace: float, emulation: Emulation, clock: Clock = REAL) -> None:
        super().__init__(pace, clock)
        self._emulation = emulation
        self._turns = Turns(emulation.turns) if emulation.turns else None

    def set_up(self, begin: Work[T]) -> Ready[T]:
        """Sets up a run, for at least the emulated time."""
        begun = self._clock.now_s()
        ready = begin()
        if self._emulation.task_ms:
            self._clock.sleep_until(begun + self._emulation.task_ms * 1e-3)
        return ready

    def computed(self, ready: Ready[T]) -> tuple[T, float]:
        """Runs it in its turn. Kernels are measured until enough is known of them, short ones only
        when they are met for the first time: that takes longer than their paced time.
        """
        with self._turn():
            if not self._emulation.reference_s:
                return self._warm(ready)
            kept = self._turns.kept(ready.kernels) if self._turns else []
            if len(kept) >= _ENOUGH or (kept and self._is_short(statistics.median(kept))):
                value = ready.compute()
            else:
                value, found = self._measured(ready, 1 if kept else _FIRST)
                kept += found
                if self._turns:
                    self._turns.keep(ready.kernels, kept)
            return value, statistics.median(kept) * self._emulation.reference_s

    def _is_short(self, shares: float) -> bool:
        """Whether measuring a kernel again takes more than a part of its paced time."""
        return _WARM * (shares + 2) > _SPARE * shares / self._pace

    def _measured(self, ready: Ready[T], runs: int) -> tuple[T, list[float]]:
        """The result, and its times as multiples of the reference's."""
        found = []
        before_s = warm_s(self._reference, self._clock.cpu_s)
        for _ in range(runs):
            value, cpu_s = self._warm(ready)
            after_s = warm_s(self._reference, self._clock.cpu_s)
            found.append(share(before_s, cpu_s, after_s))
            before_s = after_s
        return value, found

    def _warm(self, ready: Ready[T]) -> tuple[T, float]:
        """The result and its CPU seconds; with warm caches if reading weights is charged."""
        if self._emulation.weight_ns:
            ready.compute()
        return super().computed(ready)

    def waiting_s(self, ready: Ready[T]) -> float:
        """The time to read the weights."""
        return ready.weight_bytes * self._emulation.weight_ns * 1e-9

    def close(self) -> None:
        """Releases its resources."""
        if self._turns:
            self._turns.close()

    @cached_property
    def _reference(self) -> Run:
        return reference()

    def _turn(self) -> AbstractContextManager[None]:
        return self._turns.turn() if self._turns else nullcontext()
