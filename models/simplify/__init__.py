"""A network in simpler operators: those that cannot be divided are replaced by some that can.

Each rule keeps what the network computes (to rounding, where sums are taken in another order).
Splits are compared to the answer of the original model.
"""

from models.simplify.arrange import arranged
from models.simplify.ending import ending
from models.simplify.narrow import dequantised_shapes
from models.simplify.roll import rolled
from models.simplify.rows import row_axes
from models.simplify.rules import simplified
from models.simplify.sampled import by_heads
from models.simplify.sink import joined_last

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
