"""Classification: the likeliest classes of a picture. Segmentation: the class of each part."""

from collections.abc import Sequence
from dataclasses import dataclass as plain
from dataclasses import field
from math import prod
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from models.tensors.arrays import require_finite, require_no_nan
from models.vision import Corners
from models.vision.head import (
    ANY,
    OutputReader,
    OutputShapes,
    OutputValues,
    PictureSize,
    View,
    VisionTask,
    softmax,
)
from protos.daemon.documents import DOCUMENT, Integer, Number, Text

_LARGEST_TOP = 1000


@plain(frozen=True, slots=True)
class ClassProbability:
    """One class and its probability."""

    label: str
    index: int
    score: float

    def as_json(self) -> dict[str, object]:
        """The prediction as the HTTP interface shows it."""
        return {"label": self.label, "index": self.index, "score": round(self.score, 6)}


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class ClassScores(OutputReader):
    """An output (1, classes), also with trailing ones: probabilities, or logits to normalise."""

    type: Literal["softmax", "logits"]
    top: Annotated[Integer, Field(ge=1, le=_LARGEST_TOP)]
    task: ClassVar[VisionTask] = "classification"

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """One value per class."""
        name = next(iter(shapes))
        return {name: shapes[name] if prod(shapes[name]) == classes else (1, classes)}

    def read(self, outputs: OutputValues, view: View) -> list[ClassProbability]:
        """The `top` likeliest classes."""
        values = next(iter(outputs.values())).reshape(-1)
        scores = softmax(values) if self.type == "logits" else values
        require_no_nan(scores, "the scores of its classes")
        order = np.argsort(-scores, kind="stable")[: self.top]
        require_finite(scores[order], "the scores of its classes")
        return [
            ClassProbability(view.labels[index], int(index), float(scores[index]))
            for index in order
        ]


@plain(frozen=True, slots=True)
class Overlay:
    """A mask (rows, columns) over the part `covers` of the sent picture: x_min, y_min, x_max, y_max
    in its pixels.
    """

    covers: Corners
    mask: NDArray[np.bool_] = field(repr=False, compare=False)

    def as_json(self) -> dict[str, object]:
        """The mask as the HTTP interface shows it."""
        return {
            "box": [round(edge, 2) for edge in self.covers],
            "size": list(self.mask.shape),
            "counts": run_lengths(self.mask),
        }


@plain(frozen=True, slots=True)
class ClassSegment:
    """The pixels of one class; `box` bounds those that are set, a `share` of the mask."""

    label: str
    index: int
    share: float
    box: Corners
    overlay: Overlay

    def as_json(self) -> dict[str, object]:
        """The prediction as the HTTP interface shows it."""
        return {
            "label": self.label,
            "index": self.index,
            "share": round(self.share, 6),
            "box": [round(edge, 2) for edge in self.box],
            "mask": self.overlay.as_json(),
        }


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class ClassMap(OutputReader):
    """An output (1, classes, H, W) over the model's input.

    `argmax`: a pixel is of the class with the largest value. `threshold`: of every class whose
    value is above `threshold`. The class `background` is not reported.
    """

    type: Literal["argmax", "threshold"]
    threshold: Number
    background: Text | None
    task: ClassVar[VisionTask] = "segmentation"

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """The map."""
        return {next(iter(shapes)): (1, classes, ANY, ANY)}

    def read(self, outputs: OutputValues, view: View) -> list[ClassSegment]:
        """The classes that occur, largest first."""
        output = next(iter(outputs.values()))
        rows, columns, covers = view.placement.on_map(output.shape[2], output.shape[3], view.size)
        values = output[0][:, rows, columns]
        if self.type == "argmax":
            require_finite(values.max(axis=0), "its map of classes")
            masks = values.argmax(axis=0)[None] == np.arange(len(view.labels))[:, None, None]
        else:
            require_no_nan(values, "its map of classes")
            masks = values > self.threshold
        found = [
            _segment(label, index, masks[index], covers)
            for index, label in enumerate(view.labels)
            if label != self.background and masks[index].any()
        ]
        return sorted(found, key=lambda detected: -detected.share)


def run_lengths(mask: NDArray[np.bool_]) -> list[int]:
    """Lengths of runs, row after row, of pixels that are not set, set, not set, ..."""
    flat = mask.ravel()
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    edges = np.concatenate(([0], changes, [flat.size]))
    lengths: list[int] = np.diff(edges).tolist()
    return [0, *lengths] if flat.size and flat[0] else lengths


def mask_of(counts: Sequence[int], size: tuple[int, int]) -> NDArray[np.bool_]:
    """The mask (rows, columns) of its run lengths.

    Raises:
        ValueError: they do not fill it.
    """
    values = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return values.reshape(size)


def _segment(label: str, index: int, mask: NDArray[np.bool_], covers: Corners) -> ClassSegment:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    left, top, right, bottom = covers
    high, wide = (bottom - top) / mask.shape[0], (right - left) / mask.shape[1]
    box = (
        left + float(columns[0]) * wide,
        top + float(rows[0]) * high,
        left + float(columns[-1] + 1) * wide,
        top + float(rows[-1] + 1) * high,
    )
    return ClassSegment(label, index, float(mask.mean()), box, Overlay(covers, mask))
