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
from models.simplify.sampled import head_values, together
from models.simplify.sink import joined_last

__all__ = [
    "arranged",
    "dequantised_shapes",
    "ending",
    "head_values",
    "joined_last",
    "rolled",
    "row_axes",
    "simplified",
    "together",
]
