import os
import threading

import pytest

from worker.compute import Compute, Throttle, yield_to_others
from worker.settings import WorkerSettings


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
    timed = throttle.run(lambda: lambda: clock.work(cpu_s, wall_s))
    assert (timed.value, timed.start_s, timed.stop_s) == ("result", 100.0, pytest.approx(ends))
    assert clock.slept == pytest.approx(slept)
    assert throttle.overruns == overruns


@pytest.mark.parametrize(("task_s", "begins"), [(0.0, 0.2), (0.1, 0.2), (0.5, 0.5)])
def test_setting_up_is_not_paced_and_takes_what_it_takes(task_s, begins):
    clock = FakeClock()

    def begin():
        clock.work(0.2, 0.2)
        return lambda: clock.work(1.0, 1.0)

    timed = Throttle(0.5, clock, task_s).run(begin)
    assert timed.start_s == 100.0
    assert timed.stop_s == pytest.approx(100 + begins + 2.0)


def test_paced_runs_do_not_drift():
    clock = FakeClock()
    throttle = Throttle(0.1, clock)
    for _ in range(100):
        throttle.run(lambda: lambda: clock.work(0.01, 0.013))
    assert clock.wall == pytest.approx(100 + 100 * 0.1)


async def test_errors_pass_and_the_thread_lives_on():
    compute = Compute(0.5)
    with pytest.raises(ZeroDivisionError):
        await compute.run(lambda: lambda: 1 // 0)
    timed = await compute.run(lambda: lambda: threading.current_thread().name)
    assert timed.value.startswith("compute")
    assert timed.stop_s >= timed.start_s
    compute.close()


async def test_computation_yields_to_other_programs_by_default():
    def niceness():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = niceness()
    compute = Compute(1.0, WorkerSettings().nice)
    timed = await compute.run(lambda: niceness)
    compute.close()
    assert timed.value == max(before, 5)
    assert niceness() == before
    # Nobody but root may take back what a service manager has set.
    compute = Compute(1.0, 9)
    assert (await compute.run(lambda: lambda: (yield_to_others(3), niceness())[1])).value == 9
    compute.close()
