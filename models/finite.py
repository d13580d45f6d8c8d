"""Is every value a number?"""

from __future__ import annotations

import numpy as np


def is_finite(values: np.ndarray) -> bool:
    """Whether there is neither NaN nor infinity among them. One pass over the memory as a rule: a
    sum is finite only if its terms are.
    """
    if values.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        total = values.sum()
    return bool(np.isfinite(total)) or bool(np.isfinite(values).all())
