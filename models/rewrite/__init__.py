"""A network in simpler operators: those that cannot be divided are replaced by some that can.

Each rule keeps what the network computes (to rounding, where sums are taken in another order).
Splits are compared to the answer of the original model.
"""

from models.rewrite.arrangements import arranged
from models.rewrite.detector_ends import ending
from models.rewrite.narrow import dequantised_shapes
from models.rewrite.rolls import rolled
from models.rewrite.rows import row_axes
from models.rewrite.rules import simplified
from models.rewrite.sampled import by_heads
from models.rewrite.sink import joined_last

__all__ = [
    "arranged",
    "by_heads",
    "dequantised_shapes",
    "ending",
    "joined_last",
    "rolled",
    "row_axes",
    "simplified",
]
