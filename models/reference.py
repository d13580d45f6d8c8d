"""Running graphs in this process with onnxruntime: the reference answer for every split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from models.graph import Graph
from models.program import BlobSource, Program
from models.runtime_shapes import refused
from models.wire import Pixels

Arrays = Mapping[str, np.ndarray]


class WholeModel:
    """The unsplit model in plain onnxruntime, whose optimisations may be left out.

    Raises:
        BadRequest: onnxruntime refuses the model, or its inputs.
    """

    def __init__(self, model: onnx.ModelProto, threads: int = 0, *, optimised: bool = True) -> None:
        options = _options(threads)
        if not optimised:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self._session = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has an exception type for each error code
            raise refused(error) from error
        self.outputs: tuple[str, ...] = tuple(o.name for o in self._session.get_outputs())

    def run(self, feeds: Arrays) -> dict[str, np.ndarray]:
        """All outputs by name."""
        try:
            results = self._session.run(None, dict(feeds))
        except Exception as error:
            raise refused(error) from error
        return dict(zip(self.outputs, results, strict=True))


class ProgramRunner:
    """Runs programs here, keeping one session per program; `altered` may change each one first."""

    def __init__(
        self,
        blobs: BlobSource,
        threads: int = 0,
        altered: Callable[[onnx.ModelProto], None] = lambda model: None,
    ) -> None:
        self._blobs = blobs
        self._threads = threads
        self._altered = altered
        self._sessions: dict[str, ort.InferenceSession] = {}

    def run(self, program: Program, feeds: Arrays, outputs: Sequence[str]) -> list[np.ndarray]:
        """The named outputs.

        Raises:
            BadRequest: onnxruntime cannot load the program.
        """
        result: list[np.ndarray] = self.session(program).run(list(outputs), dict(feeds))
        return result

    def session(self, program: Program) -> ort.InferenceSession:
        """The program's session.

        Raises:
            BadRequest: onnxruntime cannot load the program.
        """
        session = self._sessions.get(program.sha256)
        if session is None:
            try:
                session = self._sessions[program.sha256] = self._load(program)
            except Exception as error:  # onnxruntime has an exception type for each error code
                raise refused(error) from error
        return session

    def _load(self, program: Program) -> ort.InferenceSession:
        model = onnx.ModelProto.FromString(program.graph)
        for ref in program.weights:
            tensor = model.graph.initializer.add()
            tensor.name, tensor.data_type = ref.name, ref.data_type
            tensor.dims.extend(ref.dims)
            tensor.raw_data = bytes(self._blobs.bytes_of(ref.sha256))
        self._altered(model)
        return ort.InferenceSession(
            model.SerializeToString(), _options(self._threads), providers=["CPUExecutionProvider"]
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Largest difference between two answers.

    `max_rel_error` is the largest difference of an output divided by that output's largest
    magnitude, the worst over all outputs (element-wise relative error means nothing near zero).
    Infinite where a value is not finite or a shape differs.
    """

    max_abs_error: float
    max_rel_error: float

    def __str__(self) -> str:
        if not self.max_abs_error:
            return "identical"
        return (
            f"largest difference {self.max_abs_error:.3g}, or {self.max_rel_error:.3g} of the "
            "output's largest magnitude"
        )

    def worse(self, other: Comparison) -> Comparison:
        """The worse of two, field by field."""
        return Comparison(
            max(self.max_abs_error, other.max_abs_error),
            max(self.max_rel_error, other.max_rel_error),
        )


EQUAL = Comparison(0.0, 0.0)
_DIFFERENT = Comparison(float("inf"), float("inf"))


def compare(answer: Arrays, whole: Arrays) -> Comparison:
    """Compares every output of the whole model with the answer's."""
    worst = EQUAL
    for name, expected in whole.items():
        worst = worst.worse(_compare_one(answer.get(name), expected))
    return worst


def _compare_one(actual: np.ndarray | None, expected: np.ndarray) -> Comparison:
    if actual is None or actual.shape != expected.shape or actual.dtype != expected.dtype:
        return _DIFFERENT
    if not expected.size:
        return EQUAL
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return _DIFFERENT
    difference = float(np.abs(a - b).max())
    magnitude = float(np.abs(b).max())
    if difference == 0.0:
        return EQUAL
    return Comparison(difference, difference / magnitude if magnitude else float("inf"))


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded inputs: noise as pixels if pictures are sent as pixels, standard normal for other
    tensors, small numbers for integers.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    feeds = {}
    for name in graph.inputs:
        info = graph.tensors[name]
        if isinstance(info.wire, Pixels):
            feeds[name] = rng.integers(0, 256, info.shape, dtype=np.uint8)
        else:
            feeds[name] = seeded(rng, info.dtype, info.shape)
    return feeds


def seeded(rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray:
    """A tensor of standard normal numbers, or of small integers."""
    if np.issubdtype(dtype, np.floating):
        return rng.standard_normal(tuple(shape), dtype=np.float32).astype(dtype)
    return rng.integers(0, 100, tuple(shape)).astype(dtype)


def _options(threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options
