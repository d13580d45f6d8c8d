"""Tests for NaN and infinity."""

from __future__ import annotations

import numpy as np


def is_finite(values: np.ndarray) -> bool:
    """Whether all values are finite. This usually takes one pass: a sum is finite only if its terms
    are.
    """
    if values.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        total = values.sum()
    return bool(np.isfinite(total)) or bool(np.isfinite(values).all())
