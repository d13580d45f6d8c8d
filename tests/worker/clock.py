"""Time that moves when somebody works or sleeps."""


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
