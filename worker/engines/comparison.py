"""How an engine computes one case, compared with onnxruntime: the difference, and the time."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from models.check.tolerance import of_engine, rounding_in, without_rounding
from models.cut.program import Program
from models.run.reference import compare
from models.tensors.precision import read_precision
from worker.engines.base import Runnable

Arrays = Mapping[str, np.ndarray]

# The fastest of so many runs of each, in turn: other programs disturb some of them.
ROUNDS = 3
# Another round is begun within this time only: a Pi takes seconds for a large block.
MOST_S = 2.0


@dataclass(frozen=True, slots=True)
class ReferenceRun:
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
    """`difference` from the expected outputs, of each output's largest magnitude, the worst of all,
    and what the program's precision allows; seconds of a run by the engine and by onnxruntime.
    """

    difference: float
    allowed: float
    engine_s: float
    onnxruntime_s: float

    @property
    def is_right(self) -> bool:
        """Whether the difference is allowed."""
        return self.difference <= self.allowed


def compared(
    engine: Runnable, reference: Runnable, program: Program, case: ReferenceRun
) -> Compared:
    """Runs the program with both on the same inputs, in turn.

    Raises:
        ImbrexError: one of them cannot compute it.
    """
    shapes = {name: array.shape for name, array in case.outputs.items()}
    made = engine.bound(case.inputs, shapes).compute()
    graph = onnx.ModelProto.FromString(program.graph)
    made = {
        name: without_rounding(array, case.outputs[name], rounding_in(graph.graph, name))
        for name, array in made.items()
    }
    difference = compare(made, case.outputs).max_rel_error
    fastest = [math.inf, math.inf]
    began_s = time.monotonic()
    for number in range(ROUNDS):
        if number and time.monotonic() > began_s + MOST_S:
            break
        for side, runnable in enumerate((engine, reference)):
            ready = runnable.bound(case.inputs, shapes)
            before_s = time.perf_counter()
            ready.compute()
            fastest[side] = min(fastest[side], time.perf_counter() - before_s)
    allowed = of_engine(read_precision(graph))
    return Compared(difference, allowed, *fastest)
