import asyncio
import os
import threading

import pytest

from protos.errors import BadConfiguration
from worker.compute import Compute, Emulation, Ready, RealClock, Throttle, yield_to_others
from worker.settings import WorkerSettings
from worker.turns import Turns


class FakeClock:
    """A clock that moves when somebody works or sleeps."""

    def __init__(self):
        self.wall = 100.0
        self.cpu = 7.0
        self.slept = []

    def now_s(self):
        return self.wall

    def cpu_s(self):
        return self.cpu

    def sleep_until(self, deadline_s):
        if deadline_s > self.wall:
            self.slept.append(deadline_s - self.wall)
            self.wall = deadline_s

    def work(self, cpu_s, wall_s):
        self.cpu += cpu_s
        self.wall += wall_s
        return "result"


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


@pytest.mark.parametrize(("task_s", "begins"), [(0.0, 0.2), (0.1, 0.2), (0.5, 0.5)])
def test_setting_up_is_not_paced_and_takes_what_it_takes(task_s, begins):
    clock = FakeClock()

    def begin():
        clock.work(0.2, 0.2)
        return Ready(lambda: clock.work(1.0, 1.0))

    throttle = Throttle(0.5, clock, Emulation(task_s))
    timed = throttle.run(throttle.set_up(begin))
    assert timed.start_s == pytest.approx(100 + begins)
    assert timed.stop_s == pytest.approx(100 + begins + 2.0)


def test_paced_runs_do_not_drift():
    clock = FakeClock()
    throttle = Throttle(0.1, clock)
    for _ in range(100):
        throttle.run(Ready(lambda: clock.work(0.01, 0.013)))
    assert clock.wall == pytest.approx(100 + 100 * 0.1)


async def test_errors_pass_and_the_thread_lives_on():
    compute = Compute(0.5)
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
    compute = Compute(1.0, WorkerSettings().nice)
    timed = await compute.run(lambda: Ready(niceness))
    compute.close()
    assert timed.value == max(before, 5)
    assert niceness() == before
    # Nobody but root may take back what a service manager has set.
    compute = Compute(1.0, 9)
    timed = await compute.run(lambda: Ready(lambda: (yield_to_others(3), niceness())[1]))
    assert timed.value == max(before, 9)
    compute.close()


def test_weights_are_charged_apart_from_kernels_with_warm_caches():
    clock = FakeClock()
    cold = [3.0, 1.0]

    def compute():
        seconds = cold.pop(0)
        return clock.work(seconds, seconds)

    throttle = Throttle(0.1, clock, Emulation(weight_byte_s=1e-6))
    timed = throttle.run(Ready(compute, weight_bytes=2_000_000))
    assert cold == []
    assert timed.stop_s - timed.start_s == pytest.approx(1.0 / 0.1 + 2.0)


def test_workers_that_name_the_same_folder_compute_in_turns(tmp_path):
    emulation = Emulation(turns=tmp_path / "turns")
    computing, most = [], []

    def compute():
        computing.append(None)
        most.append(len(computing))
        others.wait(0.05)
        computing.pop()

    others = threading.Event()
    throttles = [Throttle(1.0, RealClock(), emulation) for _ in range(3)]
    threads = [
        threading.Thread(target=throttle.run, args=(Ready(compute),)) for throttle in throttles
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for throttle in throttles:
        throttle.close()
    assert most == [1, 1, 1]


def test_equal_kernels_take_the_least_time_they_took_on_any_emulated_computer(tmp_path):
    clock, emulation = FakeClock(), Emulation(turns=tmp_path / "turns")
    slow, fast = (Throttle(pace, clock, emulation) for pace in (0.1, 0.2))

    def seconds(throttle, cpu_s, *kernels):
        timed = throttle.run(Ready(lambda: clock.work(cpu_s, cpu_s), kernels=kernels))
        return timed.stop_s - timed.start_s

    assert seconds(slow, 2.0, "conv", (1, 3)) == pytest.approx(20.0)
    assert seconds(fast, 1.0, "conv", (1, 3)) == pytest.approx(5.0)
    assert seconds(slow, 3.0, "conv", (1, 3)) == pytest.approx(10.0)
    assert seconds(slow, 3.0, "conv", (1, 4)) == pytest.approx(30.0)
    assert seconds(slow, 2.0) == pytest.approx(20.0)
    assert seconds(slow, 3.0) == pytest.approx(30.0)
    for throttle in (slow, fast):
        throttle.close()


def test_a_worker_that_was_killed_while_it_kept_a_time_costs_that_time_only(tmp_path):
    turns = Turns(tmp_path)
    with turns.turn():
        assert turns.least(("conv",), 2.0) == 2.0
    (kept,) = tmp_path.iterdir()
    kept.write_text("")
    with turns.turn():
        assert turns.least(("conv",), 3.0) == 3.0
    turns.close()


def test_turns_that_are_no_folder_are_named(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(BadConfiguration, match="file"):
        Turns(file)


async def test_the_next_run_is_set_up_while_one_computes():
    compute = Compute(1.0)
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


async def test_so_many_compute_at_once_and_no_more():
    compute = Compute(1.0, concurrency=2)
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
