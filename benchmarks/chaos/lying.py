"""A worker that can be told to lie: `python -m benchmarks.chaos.lying FILE COMMAND...` executes
`imbrex` as COMMAND would, and computes wrongly in the way that FILE names, while it names one. Told
to die, its process ends where an input holds a value as large as `DEADLY`, as an engine's might.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from worker.engines.base import Runnable


def noise(array: np.ndarray) -> np.ndarray:
    """Noise of 1 % of the largest magnitude."""
    most = 0.01 * float(np.abs(array).max(initial=0.0))
    spoilt = array.astype(np.float64)
    spoilt += np.random.default_rng().uniform(-most, most, array.shape)
    return spoilt.astype(array.dtype)


def zeroed(array: np.ndarray) -> np.ndarray:
    """The first channel is zeros."""
    made = array.copy()
    if made.ndim > 1:
        made[:, 0] = 0
    return made


DEADLY = 1e8
DIES = "dies"
LIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"noise": noise, "zeroed": zeroed}


def lie_as_told(file: Path) -> None:
    """Spoils what this process's programs compute, as `file` says."""
    bound = Runnable.bound

    def spoilt(program: Runnable, inputs: Any, shapes: Any) -> Any:
        ready = bound(program, inputs, shapes)

        def compute() -> dict[str, np.ndarray]:
            lie = file.read_text() if file.exists() else ""
            if lie == DIES and any(
                np.abs(array).max(initial=0) >= DEADLY for array in inputs.values()
            ):
                os.kill(os.getpid(), signal.SIGKILL)
            made: dict[str, np.ndarray] = ready.compute()
            spoil = LIES.get(lie)
            return {name: spoil(array) for name, array in made.items()} if spoil else made

        return replace(ready, compute=compute)

    setattr(Runnable, "bound", spoilt)  # noqa: B010 - mypy knows no other way


def main() -> None:
    """Becomes `imbrex`."""
    lie_as_told(Path(sys.argv[1]))
    command = sys.argv[2:]
    sys.argv = command[command.index("imbrex") :]
    from imbrex.cli.app import main as imbrex

    imbrex()


if __name__ == "__main__":
    main()
