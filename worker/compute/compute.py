"""The compute threads: one task at a time at the worker's pace, or several at once in a thread
each. One more thread sets up the next runs: that is Python code, which runs while kernels release
the GIL. A thread that completes a task's input may claim a free core and compute the task itself:
waking another thread takes longer than a small kernel.
"""

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import structlog

from worker.engines.base import Ready
from worker.engines.processor import settle_thread

_PR_SET_TIMERSLACK = 29
# The kernel's default of 50 us would lengthen every paced run.
_TIMER_SLACK_NS = 1_000

T = TypeVar("T")

_log = structlog.get_logger()


# A function that sets up a run.
Begin: TypeAlias = Callable[[], Ready[T]]


class Clock(Protocol):
    """The clocks that the throttle needs."""

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
    """The system's clocks."""

    now_s = staticmethod(time.monotonic)
    cpu_s = staticmethod(time.thread_time)

    def sleep_until(self, deadline_s: float) -> None:
        """Returns at `deadline_s` or later."""
        while (left := deadline_s - time.monotonic()) > 0:
            time.sleep(left)


REAL = RealClock()


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """A result, and when its computation began and ended, including sleep for the pace."""

    value: T
    start_s: float
    stop_s: float


class Throttle:
    """Stretches computation to `pace` of a core.

    A run that took `cpu` seconds of this thread's CPU time ends `cpu / pace` after it began, by
    sleeping until that absolute moment. A run that other load has slowed down further is not
    stretched; such overruns are counted, since they spoil measurements of the emulated device.
    """

    def __init__(self, pace: float, clock: Clock = REAL) -> None:
        self._pace = pace
        self._clock = clock
        self.overruns = 0

    def set_up(self, begin: Begin[T]) -> Ready[T]:
        """Sets a run up in the calling thread. This is Python code, which slows down less on a
        small computer than kernels do, so it is not stretched.
        """
        return begin()

    def run(self, ready: Ready[T]) -> Timed[T]:
        """Runs it in the calling thread; exceptions propagate at once."""
        clock = self._clock
        start = clock.now_s()
        value, seconds = self.computed(ready)
        ready.check(value)
        if self._pace < 1:
            deadline = start + seconds
            if clock.now_s() > deadline:
                self.overruns += 1
            else:
                clock.sleep_until(deadline)
        return Timed(value, start, clock.now_s())

    def computed(self, ready: Ready[T]) -> tuple[T, float]:
        """The result, and the seconds that it is to take."""
        before = self._clock.cpu_s()
        value = ready.compute()
        return value, (self._clock.cpu_s() - before) / self._pace

    def close(self) -> None:
        """Releases its resources."""


@dataclass(slots=True, eq=False)
class ComputeJob:
    """A run. The thread that computes it calls `ended` with its result or its error, which returns
    a job whose core that thread has claimed, to be computed next, or None.
    """

    begin: Begin[Any]
    ended: Callable[[Timed[Any] | Exception], "ComputeJob | None"]
    is_wanted: bool = True


class Compute:
    """Threads that set programs up and run them: `concurrency` at once, while one more is set up.
    What is queued is run first come, first served. Results are delivered in the thread that
    computed them. A pace below 1 requires a concurrency of 1.
    """

    def __init__(self, throttle: Throttle, nice: int = 0, concurrency: int = 1) -> None:
        self.throttle = throttle
        self._nice = nice
        self._jobs: SimpleQueue[ComputeJob | Callable[[], None] | None] = SimpleQueue()
        # Held by the thread that sets up the next job, until that job may compute.
        self._turn = threading.Lock()
        self._cores = threading.Semaphore(concurrency)
        # How many queued jobs have no core yet.
        self._waiting = 0
        self._counting = threading.Lock()
        self._settled = threading.local()
        self._threads = [
            threading.Thread(target=self._work, name=f"compute {number}", daemon=True)
            for number in range(concurrency + 1)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: ComputeJob) -> None:
        """Queues a job; may be called from any thread. A job that has been cancelled by its turn is
        skipped, without `ended`.
        """
        with self._counting:
            self._waiting += 1
        self._jobs.put(job)

    def claim(self) -> bool:
        """Claims a core for a job of the calling thread, unless all are busy or a job waits for
        one; may be called from any thread. A thread that has claimed one calls `follow`.
        """
        with self._counting:
            return not self._waiting and self._cores.acquire(blocking=False)

    def follow(self, job: ComputeJob) -> None:
        """Computes a job whose core the calling thread has claimed, and then what follows it."""
        self._settle()
        following: ComputeJob | None = job
        while following is not None:
            outcome = self._set_up(following)
            if not isinstance(outcome, Ready):
                self._cores.release()
            following = self._finish(following, outcome)

    def errand(self, do: Callable[[], None]) -> None:
        """Queues a short function, to be called once earlier jobs are set up."""
        self._jobs.put(do)

    async def run(self, begin: Begin[T]) -> Timed[T]:
        """Runs it on behalf of a caller on an event loop. Cancelling takes it out of the queue,
        unless it is already running.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Timed[T]] = loop.create_future()

        def tell(outcome: Timed[T] | Exception) -> None:
            if result.done():
                return
            if isinstance(outcome, Exception):
                result.set_exception(outcome)
            else:
                result.set_result(outcome)

        def ended(outcome: Timed[T] | Exception) -> None:
            with suppress(RuntimeError):  # the loop is closed: there is no caller left
                loop.call_soon_threadsafe(tell, outcome)

        job = ComputeJob(begin, ended)
        self.submit(job)
        try:
            return await result
        finally:
            job.is_wanted = False

    def close(self) -> None:
        """Waits for the runs in progress; drops what is queued."""
        while True:
            try:
                self._jobs.get_nowait()
            except Empty:
                break
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self.throttle.close()

    def _work(self) -> None:
        self._settle()
        while True:
            with self._turn:
                job = self._jobs.get()
                if job is None:
                    return
                if not isinstance(job, ComputeJob):
                    try:
                        job()
                    except Exception:
                        _log.exception("an errand failed")
                    continue
                outcome = self._set_up(job)
                if isinstance(outcome, Ready):
                    self._cores.acquire()
                with self._counting:
                    self._waiting -= 1
            following = self._finish(job, outcome)
            del job, outcome  # tensors live no longer than their tasks
            if following is not None:
                self.follow(following)
            del following

    def _set_up(self, job: ComputeJob) -> Ready[Any] | Exception | None:
        """The run, or its error; None if it is no longer wanted."""
        if not job.is_wanted:
            return None
        try:
            return self.throttle.set_up(job.begin)
        except Exception as error:
            return error

    def _finish(self, job: ComputeJob, outcome: Ready[Any] | Exception | None) -> ComputeJob | None:
        """Runs a job that is set up, on a core that is its own; delivers its result or its error;
        returns what this thread is to compute next.
        """
        result: Timed[Any] | Exception
        if outcome is None:
            return None
        if isinstance(outcome, Ready):
            try:
                result = self.throttle.run(outcome)
            except Exception as error:
                result = error
            finally:
                self._cores.release()
        else:
            result = outcome
        try:
            return job.ended(result)
        except Exception:
            _log.exception("the result of a task could not be delivered")
            return None

    def _settle(self) -> None:
        if hasattr(self._settled, "here"):
            return
        self._settled.here = True
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None:
            prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK_NS)
        settle_thread(self._nice)
