"""Arrays of tensors: aligned memory, and tests for NaN and infinity."""

from __future__ import annotations

import math

import numpy as np


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype, alignment: int = 64) -> np.ndarray:
    """An uninitialised array that begins at a multiple of `alignment` bytes, by default those of a
    cache line; numpy itself aligns to 16.
    """
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + alignment, np.uint8)
    start = -raw.__array_interface__["data"][0] % alignment
    return raw[start : start + size].view(dtype).reshape(shape)


def is_finite(values: np.ndarray) -> bool:
    """Whether all values are finite. This usually takes one pass: a sum is finite only if its terms
    are.
    """
    if values.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        total = values.sum()
    return bool(np.isfinite(total)) or bool(np.isfinite(values).all())
