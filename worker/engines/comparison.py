"""How an engine computes one case, compared with onnxruntime: the difference, and the time."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.reference import compare
from worker.engines.base import Runnable

Arrays = Mapping[str, np.ndarray]

# The fastest of so many runs of each, in turn: other programs disturb some of them.
ROUNDS = 3
# Another round is begun within this time only: a Pi takes seconds for a large block.
MOST_S = 2.0


@dataclass(frozen=True, slots=True)
class Case:
    """A run of a program that onnxruntime made in `seconds`."""

    sha256: str
    inputs: Arrays
    outputs: Arrays
    seconds: float

    @property
    def size_bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(each.nbytes for each in (*self.inputs.values(), *self.outputs.values()))


@dataclass(frozen=True, slots=True)
class Compared:
    """`difference` from the expected outputs, of each output's largest magnitude, the worst of all;
    seconds of a run by the engine and by onnxruntime.
    """

    difference: float
    engine_s: float
    onnxruntime_s: float


def compared(engine: Runnable, reference: Runnable, inputs: Arrays, expected: Arrays) -> Compared:
    """Runs both on the same inputs, in turn.

    Raises:
        ImbrexError: one of them cannot compute it.
    """
    shapes = {name: array.shape for name, array in expected.items()}
    difference = compare(engine.bound(inputs, shapes).compute(), expected).max_rel_error
    fastest = [math.inf, math.inf]
    began_s = time.monotonic()
    for number in range(ROUNDS):
        if number and time.monotonic() > began_s + MOST_S:
            break
        for side, runnable in enumerate((engine, reference)):
            ready = runnable.bound(inputs, shapes)
            before_s = time.perf_counter()
            ready.compute()
            fastest[side] = min(fastest[side], time.perf_counter() - before_s)
    return Compared(difference, *fastest)
