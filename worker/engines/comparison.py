"""Runs of a program by an engine and by onnxruntime, compared."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from models.check.tolerance import of_engine, rounding_in, without_rounding
from models.cut.program import Program
from models.run.reference import compare
from models.tensors.arrays import Arrays
from models.tensors.precision import read_precision
from worker.engines.base import Runnable

# The fastest of so many runs of each, in turn: other programs disturb some of them.
ROUNDS = 5
# After so many of each, one is slower if it takes so many times another's time; the first are slow.
LEAST_ROUNDS, CLEARLY = 2, 1.5
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
        return sum(array.nbytes for array in (*self.inputs.values(), *self.outputs.values()))


@dataclass(frozen=True, slots=True)
class EngineComparison:
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

    @property
    def times(self) -> float:
        """The engine's time in multiples of onnxruntime's."""
        return self.engine_s / self.onnxruntime_s


def compare_engines(
    engine: Runnable,
    reference: Runnable,
    program: Program,
    run: ReferenceRun,
    *,
    is_choice: bool = True,
) -> EngineComparison:
    """Runs the program with both on the same inputs, in turn; fewer times if nothing is chosen by
    their seconds. The engine's first run is compared.

    Raises:
        ImbrexError: one of them cannot compute it.
    """
    shapes = {name: array.shape for name, array in run.outputs.items()}
    outputs: dict[str, np.ndarray] = {}

    def by_engine() -> Callable[[], None]:
        ready = engine.bound(run.inputs, shapes)

        def compute() -> None:
            nonlocal outputs
            computed = ready.compute()
            outputs = outputs or computed

        return compute

    runs = (by_engine, lambda: reference.bound(run.inputs, shapes).compute)
    seconds = seconds_in_turn(runs, ROUNDS if is_choice else LEAST_ROUNDS)
    model = ModelProto.FromString(program.graph)
    rounded = {
        name: without_rounding(array, run.outputs[name], rounding_in(model.graph, name))
        for name, array in outputs.items()
    }
    difference = compare(rounded, run.outputs).max_rel_error
    return EngineComparison(difference, of_engine(read_precision(model)), *seconds)


def seconds_in_turn(
    runs: Sequence[Callable[[], Callable[[], object]]], rounds: int = ROUNDS
) -> list[float]:
    """Seconds of the fastest run of each, which are set up before they are timed; so many of each
    at most, and fewer where one is clearly slower than another.
    """
    fastest = [math.inf for _ in runs]
    began_s = time.monotonic()
    for number in range(rounds):
        if number and time.monotonic() > began_s + MOST_S:
            break
        if number >= LEAST_ROUNDS and max(fastest) > CLEARLY * min(fastest):
            break
        for place, set_up in enumerate(runs):
            run = set_up()
            before_s = time.perf_counter()
            run()
            fastest[place] = min(fastest[place], time.perf_counter() - before_s)
    return fastest
