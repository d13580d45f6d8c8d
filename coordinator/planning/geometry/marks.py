"""Where blocks begin and end, as searches count it."""

from typing import NewType

# The place of a boundary among those at which the blocks of a `Geometry` begin and end, from 0. The
# blocks of plans count units instead: `Geometry.boundaries` are the units before each mark.
Mark = NewType("Mark", int)
