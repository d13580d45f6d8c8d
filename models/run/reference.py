"""Running graphs in this process with onnxruntime: the reference answer for every split. Putting a
network's outputs together from what devices computed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto

from models.cut.program import BlobSource, Program
from models.graph.ending import Ending
from models.graph.graph import Graph, JoinedOutput
from models.graph.runtime_shapes import refused, session
from models.graph.sizes import layout_of
from models.tensors.arrays import Arrays
from models.tensors.wire import Pixels


class WholeModel:
    """The unsplit model in plain onnxruntime, whose optimisations may be left out.

    Several `threads` (0: one per core) take milliseconds to start and to end, which only a large
    model makes up for.

    Raises:
        BadRequest: onnxruntime refuses the model, or its inputs.
    """

    def __init__(self, model: ModelProto, threads: int = 1, *, optimised: bool = True) -> None:
        try:
            self._session = session(model, threads, optimised=optimised)
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
        threads: int = 1,
        altered: Callable[[ModelProto], None] = lambda model: None,
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
        if program.sha256 not in self._sessions:
            try:
                self._sessions[program.sha256] = self._load(program)
            except Exception as error:  # onnxruntime has an exception type for each error code
                raise refused(error) from error
        return self._sessions[program.sha256]

    def _load(self, program: Program) -> ort.InferenceSession:
        model = ModelProto.FromString(program.graph)
        for ref in program.weights:
            tensor = model.graph.initializer.add()
            tensor.name, tensor.data_type = ref.name, ref.data_type
            tensor.dims.extend(ref.dims)
            tensor.raw_data = bytes(self._blobs.bytes_of(ref.sha256))
        self._altered(model)
        return session(model, self._threads)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Largest difference between two answers.

    `max_rel_error` is the largest difference of an output divided by that output's largest
    magnitude, the worst over all outputs (element-wise relative error means nothing near zero).
    What is not finite has to be the same in both, and is left out; otherwise, and where a shape
    differs, both are infinite.
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

    def worse(self, other: "Comparison") -> "Comparison":
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
    both = np.isfinite(a) & np.isfinite(b)
    if not both.all():
        if not np.array_equal(a[~both], b[~both], equal_nan=True):
            return _DIFFERENT
        a, b = a[both], b[both]
    difference = float(np.abs(a - b).max(initial=0.0))
    magnitude = float(np.abs(b).max(initial=0.0))
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


def picture_inputs(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded inputs as `random_inputs`, but pictures where pictures go in: smooth shapes with edges
    and a little noise, as pixels, or as floats from 0 to 1.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    feeds = random_inputs(graph, seed)
    for name in graph.inputs:
        info = graph.tensors[name]
        layout = layout_of(info.shape)
        if layout is None or info.dtype.kind not in "fu":
            continue
        sides = {axis: info.shape[layout.index(axis)] for axis in "HWC"}
        pixels = _picture(rng, sides["H"], sides["W"], sides["C"])
        if not layout.endswith("C"):
            pixels = pixels.transpose(2, 0, 1)
        pixels = np.ascontiguousarray(pixels.reshape(info.shape))
        is_float = info.dtype.kind == "f" and not isinstance(info.wire, Pixels)
        feeds[name] = (pixels / np.float32(255)).astype(info.dtype) if is_float else pixels
    return feeds


def _picture(rng: np.random.Generator, height: int, width: int, channels: int) -> NDArray[np.uint8]:
    """Light that varies slowly, some rectangles before it, and a sensor's noise (H, W, C) uint8."""
    coarse = rng.uniform(40, 215, (6, 6, channels))
    rows, cols = np.linspace(0, 5, height), np.linspace(0, 5, width)
    top, left = rows.astype(int).clip(max=4), cols.astype(int).clip(max=4)
    down, right = (rows - top)[:, None, None], (cols - left)[None, :, None]
    upper = coarse[top][:, left] * (1 - right) + coarse[top][:, left + 1] * right
    lower = coarse[top + 1][:, left] * (1 - right) + coarse[top + 1][:, left + 1] * right
    light = upper * (1 - down) + lower * down
    for _ in range(6):
        y, x = rng.integers(0, height), rng.integers(0, width)
        high, wide = (
            1 + rng.integers(0, max(1, height // 3)),
            1 + rng.integers(0, max(1, width // 3)),
        )
        light[y : y + high, x : x + wide] = rng.uniform(0, 255, channels)
    noisy = light + rng.normal(0, 3, light.shape)
    return np.asarray(noisy.clip(0, 255), np.uint8)


def seeded(rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray:
    """A tensor of standard normal numbers, or of small integers."""
    if np.issubdtype(dtype, np.floating):
        return rng.standard_normal(tuple(shape), dtype=np.float32).astype(dtype)
    return rng.integers(0, 100, tuple(shape)).astype(dtype)


_ENDINGS: WeakKeyDictionary[Ending, WholeModel] = WeakKeyDictionary()


def answer(
    outputs: Iterable[str],
    joined: Mapping[str, JoinedOutput],
    arrays: Arrays,
    ending: Ending | None = None,
) -> dict[str, np.ndarray]:
    """The outputs of a network from what was computed of them."""
    if ending is not None:
        names = tuple(outputs)
        made = answer(ending.ahead(names), joined, arrays)
        if ending not in _ENDINGS:
            _ENDINGS[ending] = WholeModel(ending.model, threads=1)
        made |= _ENDINGS[ending].run({ending.source: made[ending.source]})
        return {name: made[name] for name in names}
    found = {}
    for name in outputs:
        if name in joined:
            axis, parts = joined[name]
            found[name] = np.concatenate([arrays[part] for part in parts], axis=axis)
        else:
            found[name] = arrays[name]
    return found
