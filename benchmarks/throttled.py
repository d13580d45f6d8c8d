"""Executes a worker that can be made slower while it runs, as heat does: SIGUSR1 has what it
computes take three times as long, SIGUSR2 as long as before.

    python -m benchmarks.throttled python -m imbrex worker --pace 0.2
"""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from types import FrameType

from imbrex.cli.app import main as imbrex
from worker.compute.compute import RealClock, T, Throttle, Timed
from worker.engines.base import Ready

SLOWER = 3.0
_COMMAND = ("-m", "imbrex")

_factor = 1.0
_run = Throttle.run


def _slowed(self: Throttle, ready: Ready[T]) -> Timed[T]:
    timed = _run(self, ready)
    if _factor == 1.0:
        return timed
    clock = RealClock()
    clock.sleep_until(timed.start_s + _factor * (timed.stop_s - timed.start_s))
    return replace(timed, stop_s=clock.now_s())


def _told(number: int, frame: FrameType | None) -> None:
    del frame
    global _factor  # noqa: PLW0603 - a signal handler has nowhere else to put it
    _factor = SLOWER if number == signal.SIGUSR1 else 1.0


def main() -> None:
    """Runs the command's worker in this process."""
    command = sys.argv[2:]
    if tuple(command[: len(_COMMAND)]) != _COMMAND:
        sys.exit(f"usage: {(__doc__ or '').splitlines()[-2].strip()}")
    sys.argv = command[1:]
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _told)
    Throttle.run = _slowed  # type: ignore[method-assign]
    imbrex()


if __name__ == "__main__":
    main()
