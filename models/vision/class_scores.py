"""Classification: the likeliest classes of a picture."""

from dataclasses import dataclass as plain
from math import prod
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from models.tensors.arrays import require_finite, require_no_nan
from models.vision.head import (
    OutputReader,
    OutputShapes,
    OutputValues,
    PictureSize,
    View,
    VisionTask,
    first,
    softmax,
)
from protos.daemon.documents import DOCUMENT, Integer

LARGEST_TOP = 1000


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
    top: Annotated[Integer, Field(ge=1, le=LARGEST_TOP)]
    task: ClassVar[VisionTask] = "classification"

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """One value per class."""
        name = first(shapes)
        return {name: shapes[name] if prod(shapes[name]) == classes else (1, classes)}

    def read(self, outputs: OutputValues, view: View) -> list[ClassProbability]:
        """The `top` likeliest classes."""
        values = outputs[first(outputs)].reshape(-1)
        scores = softmax(values) if self.type == "logits" else values
        require_no_nan(scores, "the scores of its classes")
        order = np.argsort(-scores, kind="stable")[: self.top]
        require_finite(scores[order], "the scores of its classes")
        return [
            ClassProbability(view.labels[index], int(index), float(scores[index]))
            for index in order
        ]
