"""How long a demo takes: decided before it starts, two minutes at most, unless even the fewest
requests take longer, which it says.
"""

from dataclasses import dataclass

from coordinator.measuring.baseline import AT_MOST_S, HALF_REPEATS, REPEATS

MOST_S = 120.0
# What a demo is meant to take: one of VGG-16 took a fifth more than was expected, the first time.
AIM_S = 100.0
# Processes start and find each other, and the first plan is made.
_START_S = 30.0
# One device is measured, with each of its engines: the others are alike.
PROFILE_S = 30.0
# Weights are handed out and loaded for the first plan, and programs made for the second.
_WEIGHTS_PER_S = 30e6


@dataclass(frozen=True, slots=True)
class Requests:
    """How many requests show what messages and tasks cost, begin each plan (the first one loads
    sessions, others show how its tasks compare with the profile), and are timed.
    """

    learning: int
    first: int
    warm: int


# Estimates settle within ten requests.
USUAL = Requests(6, 4, 7)
FEWER = (USUAL, Requests(2, 2, 3), Requests(1, 1, 1), Requests(0, 1, 1))


def usual_s(alone_s: float, count: int) -> float:
    """What so many devices take of which one takes `alone_s`. That two gain nothing is usual, and
    that further ones are worth half of one each.
    """
    return alone_s * (0.5 + 0.5 / count)


def _timed_s(run_s: float, repeats: int) -> float:
    """What it takes to time one device: it warms up by one run, and begins no further run after
    `AT_MOST_S`.
    """
    return min((1 + repeats) * run_s, AT_MOST_S + 2 * run_s)


@dataclass(frozen=True, slots=True)
class Length:
    """What decides how long a demo takes, beside its scale: the seconds that one of the devices
    takes alone, and all of them together; their number; and whether they are measured, and every
    number of them is timed; the bytes of its weights; and the seconds that the one takes in two
    halves, if these are timed, too.
    """

    alone_s: float
    together_s: float
    workers: int
    profile: bool
    curve: bool
    weight_bytes: int = 0
    halves_s: float = 0.0

    def expected_s(self, scale: float, requests: Requests) -> float:
        """Seconds that all takes here, if a second of the devices takes 1 / `scale`."""
        alone_s, together_s = self.alone_s / scale, self.together_s / scale
        if self.halves_s:  # the whole by two engines, and each of the halves
            timed_s = _timed_s(2 * alone_s, HALF_REPEATS)
            timed_s += 2 * _timed_s(self.halves_s / scale / 2, HALF_REPEATS)
        else:
            timed_s = _timed_s(alone_s, REPEATS)
        fewer = range(1, self.workers) if self.curve else ()
        plans_s = together_s + sum(max(together_s, usual_s(alone_s, count)) for count in fewer)
        return (
            _START_S
            + self.profile * PROFILE_S
            + self.weight_bytes / _WEIGHTS_PER_S
            + (1 + requests.learning) * together_s
            + (requests.first + requests.warm) * plans_s
            + timed_s
        )

    def told(self, scale: float, requests: Requests) -> str:
        """What the demo says of it before it starts."""
        about_s = self.expected_s(scale, requests)
        text = f"this takes about {about_s:.0f} s, at 1/{1 / scale:g} of the devices' speed"
        if about_s > MOST_S:
            text += "; fewer requests are not possible, but fewer --workers or no --curve are"
        return text
