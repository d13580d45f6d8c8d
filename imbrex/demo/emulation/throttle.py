"""The throttle of an emulated worker, which computes like a smaller computer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from imbrex.demo.emulation.settings import Emulation
from imbrex.demo.emulation.turns import Turns
from worker.compute import REAL, Clock, Throttle, Work
from worker.engines.base import Ready

T = TypeVar("T")
# A worker sleeps for most of its paced time; others want their turn meanwhile.
_SPARE = 0.125


class EmulatedThrottle(Throttle):
    """In addition to the pace: setting a task up takes `task_ms`, reading weights takes time, and
    with `turns`, equal kernels take equal time on all workers of this machine.

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
        """Runs it in its turn."""
        with self._turn():
            if self._emulation.weight_ns:
                ready.compute()
            until_s = self._clock.now_s()
            value, cpu_s = super().computed(ready)
            until_s += _SPARE * cpu_s / self._pace
            for _ in range(1, self._emulation.tries):
                if self._clock.now_s() < until_s:
                    value, again_s = super().computed(ready)
                    cpu_s = min(cpu_s, again_s)
            if self._turns and ready.kernels:
                cpu_s = self._turns.least(ready.kernels, cpu_s)
        return value, cpu_s

    def waiting_s(self, ready: Ready[T]) -> float:
        """The time to read the weights."""
        return ready.weight_bytes * self._emulation.weight_ns * 1e-9

    def close(self) -> None:
        """Releases its resources."""
        if self._turns:
            self._turns.close()

    def _turn(self) -> AbstractContextManager[None]:
        return self._turns.turn() if self._turns else nullcontext()
