"""Where programs run: one task at a time at the worker's pace, or several at once, a thread for
each. Another thread sets the next task up meanwhile: that is Python, which kernels leave time for.
"""

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeAlias, TypeVar

from worker.turns import Turns

_PR_SET_TIMERSLACK = 29
# The kernel's default of 50 us would lengthen every paced run.
_TIMER_SLACK_NS = 1_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ready(Generic[T]):
    """A run that is set up: what computes, how many bytes of weights it reads, what tells its
    kernels from others (empty: nothing), and what looks at its result, which is not kernels and no
    part of its time.
    """

    compute: Callable[[], T]
    weight_bytes: int = 0
    kernels: tuple[object, ...] = ()
    check: Callable[[T], None] | None = None


# Sets up a run.
Work: TypeAlias = Callable[[], Ready[T]]


@dataclass(frozen=True, slots=True)
class Emulation:
    """In what else than its pace a worker is like a smaller computer.

    `task_s` is how long setting up a task takes, `weight_byte_s` how long reading a byte of
    weights does: kernels are then timed with warm caches, since a pace would stretch their waiting
    for memory as much as their arithmetic. Workers of one machine that name the same folder `turns`
    compute in turns, and kernels take the least CPU time that they have taken on any of them:
    emulated computers share no caches and no cores.
    """

    task_s: float = 0.0
    weight_byte_s: float = 0.0
    turns: Path | None = None


class Clock(Protocol):
    """Time as the throttle needs it."""

    def now_s(self) -> float:
        """Monotonic wall time."""
        ...

    def cpu_s(self) -> float:
        """CPU time of the calling thread."""
        ...

    def sleep_until(self, deadline_s: float) -> None:
        """Returns at `deadline_s` or later."""
        ...


class RealClock:
    """The machine's clocks."""

    def now_s(self) -> float:
        """Monotonic wall time."""
        return time.monotonic()

    def cpu_s(self) -> float:
        """CPU time of the calling thread."""
        return time.thread_time()

    def sleep_until(self, deadline_s: float) -> None:
        """Returns at `deadline_s` or later."""
        while (left := deadline_s - time.monotonic()) > 0:
            time.sleep(left)


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """A result and when its computation began and ended, sleep of the pace included."""

    value: T
    start_s: float
    stop_s: float


class Throttle:
    """Stretches computation to `pace` of a core.

    A run that took `cpu` seconds of this thread's CPU time ends `cpu / pace` after it began, by
    sleeping until that absolute moment. A run that other load made even slower isn't stretched
    further; such overruns are counted, since measurements then are not of the emulated device.

    Setting up is Python, by which a small computer is not slower in the same measure as by its
    kernels: it takes as long as it takes here, or as is emulated.
    """

    def __init__(self, pace: float, clock: Clock, emulation: Emulation = Emulation()) -> None:
        self._pace = pace
        self._clock = clock
        self._emulation = emulation
        self._turns = Turns(emulation.turns) if emulation.turns else None
        self.overruns = 0

    def set_up(self, begin: Work[T]) -> Ready[T]:
        """Sets a run up in the calling thread."""
        begun = self._clock.now_s()
        ready = begin()
        if self._emulation.task_s:
            self._clock.sleep_until(begun + self._emulation.task_s)
        return ready

    def run(self, ready: Ready[T]) -> Timed[T]:
        """Runs it in the calling thread; exceptions pass, unstretched."""
        clock = self._clock
        start = clock.now_s()
        with self._turn():
            value, cpu_s = self._computed(ready)
        if ready.check:
            ready.check(value)
        if self._pace < 1:
            weights_s = ready.weight_bytes * self._emulation.weight_byte_s
            deadline = start + cpu_s / self._pace + weights_s
            if clock.now_s() > deadline:
                self.overruns += 1
            else:
                clock.sleep_until(deadline)
        return Timed(value, start, clock.now_s())

    def close(self) -> None:
        """Gives back what it holds."""
        if self._turns:
            self._turns.close()

    def _computed(self, ready: Ready[T]) -> tuple[T, float]:
        """The result and its CPU seconds."""
        if self._emulation.weight_byte_s:
            ready.compute()
        before = self._clock.cpu_s()
        value = ready.compute()
        cpu_s = self._clock.cpu_s() - before
        if self._turns and ready.kernels:
            cpu_s = self._turns.least(ready.kernels, cpu_s)
        return value, cpu_s

    def _turn(self) -> AbstractContextManager[None]:
        return self._turns.turn() if self._turns else nullcontext()


class Compute:
    """The threads that set programs up and run them, first come, first served: `concurrency` at
    once. A pace below 1 and emulation are for one at a time.
    """

    def __init__(
        self,
        pace: float,
        nice: int = 0,
        emulation: Emulation = Emulation(),
        concurrency: int = 1,
    ) -> None:
        self.throttle = Throttle(pace, RealClock(), emulation)
        self._nice = nice
        self._setting_up = ThreadPoolExecutor(1, "set up", initializer=self._settle)
        self._computing = ThreadPoolExecutor(concurrency, "compute", initializer=self._settle)

    async def run(self, begin: Work[T]) -> Timed[T]:
        """Sets up and runs in its turn. Cancelling the caller takes it out of the queue, unless it
        runs already.
        """
        loop = asyncio.get_running_loop()
        ready = await loop.run_in_executor(self._setting_up, self.throttle.set_up, begin)
        return await loop.run_in_executor(self._computing, self.throttle.run, ready)

    def close(self) -> None:
        """Waits for the runs in progress; drops what is queued."""
        for threads in (self._setting_up, self._computing):
            threads.shutdown(wait=True, cancel_futures=True)
        self.throttle.close()

    def _settle(self) -> None:
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None:
            prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK_NS)
        yield_to_others(self._nice)


def yield_to_others(nice: int) -> None:
    """This thread, and those that it starts from now on, are at least so nice to other programs."""
    thread = threading.get_native_id()
    # A service manager may have made the whole process nicer: only root may take that back.
    if nice > os.getpriority(os.PRIO_PROCESS, thread):
        os.setpriority(os.PRIO_PROCESS, thread, nice)
