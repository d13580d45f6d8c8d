"""Boxes of tensors as arrays, to compute the volumes and overlaps of thousands at once."""

from collections.abc import Sequence

import numpy as np

from models.tensors.arrays import Ints
from models.tensors.boxes import Box

# The dimensions of a map; boxes with more need arrays with more.
MAP_AXES = 4


def stacked(boxes: Sequence[Box | None], axes: int = MAP_AXES) -> Ints:
    """[box, axis, start or stop]. A missing box is all zeros; along axes that a box does not have,
    it covers a single element.
    """
    nothing, more = [0] * (2 * axes), [0, 1] * axes
    flat: list[int] = []
    for box in boxes:
        if box is None:
            flat += nothing
        else:
            for span in box:
                flat += span
            flat += more[2 * len(box) :]
    return np.array(flat, dtype=np.int64).reshape(-1, axes, 2)


def volumes(boxes: Ints) -> Ints:
    """Elements of each box."""
    return common(boxes, boxes)


def common(one: Ints, other: Ints) -> Ints:
    """Elements that boxes have in common with others, broadcast together. Empty boxes are empty
    along all axes.
    """
    found: Ints = np.ones((), dtype=np.int64)
    # The first axis is mostly a batch of one.
    batched = one.shape[-2] < 2 or bool((one[..., 0, 1] > 1).any())
    for axis in range(0 if batched else 1, one.shape[-2]):
        low = np.maximum(one[..., axis, 0], other[..., axis, 0])
        lengths = np.minimum(one[..., axis, 1], other[..., axis, 1]) - low
        found = found * np.maximum(lengths, 0)
    return found
