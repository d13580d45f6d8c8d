"""The entries of an output that its reader looks at: a detector's boxes of enough likelihood.

A device that knows the selection sends these alone, and the others are zeros at the receiver: they
score below any threshold, so a reader finds the same in both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from models.tensors.boxes import Box, Span


@dataclass(frozen=True, slots=True)
class Selection:
    """Of the entries along `axis` those whose best score is at least `least`, which is positive,
    or NaN.
    Along `across` lie an entry's values: `scores` among them, each multiplied by the value at
    `factor` if there is one. All other dimensions are 1.
    """

    axis: int
    across: int
    scores: Span
    least: float
    factor: int | None = None

    def fits(self, box: Box) -> bool:
        """Whether it can be made from a box of a tensor: that has all scores of its entries."""
        if self.axis == self.across or max(self.axis, self.across) >= len(box):
            return False
        last = max(self.scores.stop, 0 if self.factor is None else self.factor + 1)
        others = (len(span) for k, span in enumerate(box) if k not in (self.axis, self.across))
        return (
            0 <= self.scores.start < self.scores.stop
            and box[self.across].start == 0
            and box[self.across].stop >= last
            and all(size == 1 for size in others)
        )

    def best(self, array: np.ndarray) -> NDArray[np.float32]:
        """The best score of each entry (N,) of a part that it fits; NaN if any of them is."""
        values = np.moveaxis(array, (self.axis, self.across), (-1, -2))
        values = values.reshape(values.shape[-2:]).astype(np.float32, copy=False)
        scores = values[self.scores.start : self.scores.stop]
        if self.factor is not None:
            with np.errstate(all="ignore"):
                scores = values[self.factor] * scores
        best: NDArray[np.float32] = scores.max(axis=0)
        return best

    def chosen(self, array: np.ndarray) -> NDArray[np.int64]:
        """The entries of a part that it fits, in ascending order."""
        return np.flatnonzero(~(self.best(array) < self.least))


def as_read(
    selection: Selection, actual: np.ndarray, expected: np.ndarray, tolerance: float
) -> np.ndarray:
    """`expected`, with the `actual` values where neither has an entry to select. A score counts as
    the threshold's equal within `tolerance` of the largest magnitude.
    """
    margin = tolerance * float(np.abs(expected).max(initial=0))
    ignored = selection.best(actual) < selection.least
    ignored &= selection.best(expected) < selection.least + margin
    expected, axis = expected.copy(), selection.axis
    np.moveaxis(expected, axis, 0)[ignored] = np.moveaxis(actual, axis, 0)[ignored]
    return expected


# By output.
Selections = Mapping[str, Selection]
NO_SELECTION: Selections = MappingProxyType({})


def fitting(selections: Selections, output: str, box: Box) -> Selection | None:
    """The selection of an output, if it can be made from this box of it."""
    selection = selections.get(output)
    return selection if selection is not None and selection.fits(box) else None


def dense(
    chosen: np.ndarray, entries: Sequence[int], axis: int, shape: Sequence[int]
) -> np.ndarray:
    """A part of this shape from its chosen entries; the others are zeros.

    Raises:
        ValueError: these can't be its chosen entries.
    """
    if axis >= len(shape):
        raise ValueError(f"its entries lie along axis {axis} of {len(shape)}")
    index = np.asarray(entries, dtype=np.int64)
    if index.size and (index[0] < 0 or index[-1] >= shape[axis] or np.any(np.diff(index) <= 0)):
        raise ValueError(f"it does not name entries of {shape[axis]} in ascending order")
    array = np.zeros(shape, chosen.dtype)
    np.moveaxis(array, axis, 0)[index] = np.moveaxis(chosen, axis, 0)
    return array
