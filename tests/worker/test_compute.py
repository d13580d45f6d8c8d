import threading

import pytest

from worker.compute import Compute, Throttle


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
    timed = throttle.run(lambda: clock.work(cpu_s, wall_s))
    assert (timed.value, timed.start_s, timed.stop_s) == ("result", 100.0, pytest.approx(ends))
    assert clock.slept == pytest.approx(slept)
    assert throttle.overruns == overruns


def test_paced_runs_do_not_drift():
    clock = FakeClock()
    throttle = Throttle(0.1, clock)
    for _ in range(100):
        throttle.run(lambda: clock.work(0.01, 0.013))
    assert clock.wall == pytest.approx(100 + 100 * 0.1)


async def test_errors_pass_and_the_thread_lives_on():
    compute = Compute(0.5)
    with pytest.raises(ZeroDivisionError):
        await compute.run(lambda: 1 // 0)
    timed = await compute.run(lambda: threading.current_thread().name)
    assert timed.value.startswith("compute")
    assert timed.stop_s >= timed.start_s
    compute.close()
