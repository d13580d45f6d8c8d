"""Where programs run: one thread, one task at a time, at the worker's pace."""

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

_PR_SET_TIMERSLACK = 29
# The kernel's default of 50 us would lengthen every paced run.
_TIMER_SLACK_NS = 1_000

T = TypeVar("T")
# Sets up a run, and returns what computes.
Work: TypeAlias = Callable[[], Callable[[], T]]


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

    What comes before a run is Python, by which a small computer is not slower in the same measure
    as by its kernels: it takes `task_s`, or as long as it takes here.
    """

    def __init__(self, pace: float, clock: Clock, task_s: float = 0.0) -> None:
        self._pace = pace
        self._clock = clock
        self._task_s = task_s
        self.overruns = 0

    def run(self, begin: Work[T]) -> Timed[T]:
        """Runs in the calling thread what `begin` returns; exceptions pass, unstretched."""
        clock = self._clock
        begun = clock.now_s()
        work = begin()
        if self._task_s:
            clock.sleep_until(begun + self._task_s)
        start, cpu = clock.now_s(), clock.cpu_s()
        value = work()
        if self._pace < 1:
            deadline = start + (clock.cpu_s() - cpu) / self._pace
            if clock.now_s() > deadline:
                self.overruns += 1
            else:
                clock.sleep_until(deadline)
        return Timed(value, begun, clock.now_s())


class Compute:
    """The thread that runs programs, first come, first served."""

    def __init__(self, pace: float, nice: int = 0, task_s: float = 0.0) -> None:
        self.throttle = Throttle(pace, RealClock(), task_s)
        self._nice = nice
        self._thread = ThreadPoolExecutor(1, "compute", initializer=self._settle)

    async def run(self, begin: Work[T]) -> Timed[T]:
        """Sets up and runs in its turn. Cancelling the caller takes it out of the queue, unless it
        runs already.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self.throttle.run, begin)

    def close(self) -> None:
        """Waits for the run in progress; drops what is queued."""
        self._thread.shutdown(wait=True, cancel_futures=True)

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
