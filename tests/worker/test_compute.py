import asyncio
import os
import platform
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.worker.clock import FakeClock
from worker.compute.compute import Compute, ComputeJob, Ready, Throttle
from worker.engines.processor import settle_thread, yield_to_others
from worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("pace", "cpu_s", "wall_s", "ends", "slept", "overruns"),
    [
        (0.5, 1.0, 1.0, 102.0, [1.0], 0),
        (0.25, 1.0, 1.5, 104.0, [2.5], 0),
        (0.5, 1.0, 3.0, 103.0, [], 1),
        (1.0, 1.0, 1.2, 101.2, [], 0),
    ],
)
def test_a_run_ends_its_cpu_time_over_the_pace_after_it_began(
    pace, cpu_s, wall_s, ends, slept, overruns
):
    clock = FakeClock()
    throttle = Throttle(pace, clock)
    timed = throttle.run(Ready(lambda: clock.work(cpu_s, wall_s)))
    assert (timed.value, timed.start_s, timed.stop_s) == ("result", 100.0, pytest.approx(ends))
    assert clock.slept == pytest.approx(slept)
    assert throttle.overruns == overruns


def test_paced_runs_do_not_drift():
    clock = FakeClock()
    throttle = Throttle(0.1, clock)
    for _ in range(100):
        throttle.run(Ready(lambda: clock.work(0.01, 0.013)))
    assert clock.wall == pytest.approx(100 + 100 * 0.1)


async def test_errors_pass_and_the_thread_lives_on():
    compute = Compute(Throttle(0.5))
    with pytest.raises(ZeroDivisionError):
        await compute.run(lambda: Ready(lambda: 1 // 0))
    timed = await compute.run(lambda: Ready(lambda: threading.current_thread().name))
    assert timed.value.startswith("compute")
    assert timed.stop_s >= timed.start_s
    compute.close()


async def test_computation_yields_to_other_programs_by_default():
    def niceness():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = niceness()
    compute = Compute(Throttle(1.0), WorkerSettings().nice)
    timed = await compute.run(lambda: Ready(niceness))
    compute.close()
    assert timed.value == max(before, 5)
    assert niceness() == before
    # Nobody but root may take back what a service manager has set.
    compute = Compute(Throttle(1.0), 9)
    timed = await compute.run(lambda: Ready(lambda: (yield_to_others(3), niceness())[1]))
    assert timed.value == max(before, 9)
    compute.close()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 is slow with subnormals")
async def test_a_subnormal_number_counts_as_zero_while_computing_and_nowhere_else():
    smallest = np.full(4, 1e-40, np.float32)
    compute = Compute(Throttle(1.0))
    timed = await compute.run(lambda: Ready(lambda: smallest * np.float32(0.5)))
    with ThreadPoolExecutor(1, initializer=settle_thread, initargs=(0,)) as pool:
        inherited = pool.submit(
            _in_a_thread_of_its_own, lambda: smallest * np.float32(0.5)
        ).result()
    compute.close()
    assert not timed.value.any()
    assert not inherited.any()
    assert (smallest * np.float32(0.5)).all()


def _in_a_thread_of_its_own(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


async def test_the_next_run_is_set_up_while_one_computes():
    compute = Compute(Throttle(1.0))
    computing, is_set_up = threading.Event(), threading.Event()

    def first():
        computing.set()
        return is_set_up.wait(10)

    def second():
        computing.wait(10)
        is_set_up.set()
        return Ready(lambda: "second")

    done = await asyncio.gather(compute.run(lambda: Ready(first)), compute.run(second))
    assert [timed.value for timed in done] == [True, "second"]
    compute.close()


async def test_an_errand_is_done_while_one_computes():
    compute = Compute(Throttle(1.0))
    is_done = threading.Event()
    waiting = asyncio.create_task(compute.run(lambda: Ready(lambda: is_done.wait(10))))
    await asyncio.sleep(0)  # it is handed over
    compute.errand(is_done.set)
    assert (await waiting).value
    compute.close()


async def test_tasks_at_once_are_limited_to_the_concurrency():
    compute = Compute(Throttle(1.0), concurrency=2)
    both, computing, most = threading.Barrier(2, timeout=10), [], []

    def meet():
        computing.append(None)
        both.wait()
        most.append(len(computing))
        both.wait()
        computing.pop()
        return "met"

    done = await asyncio.gather(*(compute.run(lambda: Ready(meet)) for _ in range(4)))
    assert [timed.value for timed in done] == ["met"] * 4
    assert max(most) == 2
    compute.close()


def follow(compute, job):
    """Has another thread compute, which treats subnormal numbers as zero from then on."""
    thread = threading.Thread(target=compute.follow, args=(job,))
    thread.start()
    thread.join()
    return thread


def test_a_thread_that_has_claimed_a_core_computes_what_follows_too():
    compute, told = Compute(Throttle(1.0)), []

    def job(number, following=None):
        def ended(outcome):
            told.append((outcome.value, threading.current_thread()))
            return following if following and compute.claim() else None

        return ComputeJob(lambda: Ready(lambda: number), ended)

    assert compute.claim()
    thread = follow(compute, job(1, job(2)))
    assert told == [(1, thread), (2, thread)]
    compute.close()


def test_a_core_is_claimed_once_and_not_before_what_waits():
    compute, computing, go_on = Compute(Throttle(1.0)), threading.Event(), threading.Event()
    ended = []

    def first():
        computing.set()
        return go_on.wait(10)

    assert compute.claim()
    assert not compute.claim()
    compute.submit(ComputeJob(lambda: Ready(first), ended.append))
    assert not computing.wait(0.1), "the core is taken"
    follow(compute, ComputeJob(lambda: Ready(lambda: "claimed"), ended.append))
    assert computing.wait(10)
    compute.submit(ComputeJob(lambda: Ready(lambda: "waits"), ended.append))
    assert not compute.claim()
    go_on.set()
    compute.close()
    assert [timed.value for timed in ended[:2]] == ["claimed", True]


def test_unwanted_job_leaves_its_claimed_core_free():
    compute, ended = Compute(Throttle(1.0)), []
    job = ComputeJob(lambda: Ready(lambda: 1), ended.append, is_wanted=False)
    for _ in range(2):
        assert compute.claim()
        follow(compute, job)
    assert ended == []
    compute.close()


@pytest.mark.parametrize("fails", ["begin", "compute"])
def test_a_claimed_core_is_free_again_after_an_error(fails):
    compute, ended = Compute(Throttle(1.0)), []
    job = ComputeJob(lambda: 1 // 0 if fails == "begin" else Ready(lambda: 1 // 0), ended.append)
    for _ in range(2):
        assert compute.claim()
        follow(compute, job)
    assert [type(error) for error in ended] == [ZeroDivisionError] * 2
    compute.close()


def test_a_claiming_thread_yields_to_other_programs_like_those_of_the_pool():
    compute, ended = Compute(Throttle(1.0), 7), []

    def niceness():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def reads():
        assert compute.claim()
        compute.follow(ComputeJob(lambda: Ready(niceness), ended.append))

    before, thread = niceness(), threading.Thread(target=reads)
    thread.start()
    thread.join()
    compute.close()
    assert [timed.value for timed in ended] == [max(before, 7)]


async def test_an_errand_that_fails_ends_no_thread():
    compute = Compute(Throttle(1.0))
    for _ in range(4):
        compute.errand(lambda: 1 // 0)
    timed = await compute.run(lambda: Ready(lambda: "computed"))
    assert timed.value == "computed"
    compute.close()
