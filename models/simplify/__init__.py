"""A network in simpler terms: operators that can't be divided become some that can.

Each rule keeps what the network computes (to rounding, where sums are taken in another order).
The answer that splits are compared to is that of the model as it was.
"""

from models.simplify.arrange import arranged
from models.simplify.narrow import dequantised_shapes
from models.simplify.rules import simplified

__all__ = ["arranged", "dequantised_shapes", "simplified"]
