"""Arrays of tensors: aligned memory, and NaN and infinities in them."""

import ctypes
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from protos.errors import NotFiniteAnswer

# Tensors by name.
Arrays = Mapping[str, np.ndarray]
Shape = tuple[int, ...]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype, alignment: int = 64) -> np.ndarray:
    """An uninitialised array that begins at a multiple of `alignment` bytes, by default those of a
    cache line; numpy itself aligns to 16.
    """
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + alignment, np.uint8)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(raw.data)) % alignment
    return raw[start : start + size].view(dtype).reshape(shape)


def is_finite(values: np.ndarray) -> bool:
    """Whether all values are finite."""
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def require_finite(values: np.ndarray, what: str, cure: str = "") -> None:
    """Refuses NaN and infinities.

    Raises:
        NotFiniteAnswer: there are some; `cure` is another one.
    """
    if not is_finite(values):
        raise _not_finite(values, what, cure)


def require_no_nan(values: np.ndarray, what: str) -> None:
    """Refuses NaN; infinities are values like any other.

    Raises:
        NotFiniteAnswer: there are some.
    """
    if np.isnan(values).any():
        raise _not_finite(values, what)


def _not_finite(values: np.ndarray, what: str, cure: str = "") -> NotFiniteAnswer:
    seen = {"NaN": np.isnan(values).any(), "infinities": np.isinf(values).any()}
    kinds = " and ".join(kind for kind, is_there in seen.items() if is_there)
    return NotFiniteAnswer(
        cause=f"the model's answer has {kinds} in {what}",
        cure="If it computes in half precision (float16), try its float32 form (f32)"
        + (f"; or {cure}" if cure else ""),
    )
