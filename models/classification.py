"""The likeliest classes of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.detection import softmax
from models.heads import ClassScores


@dataclass(frozen=True, slots=True)
class Classification:
    """One class and its probability."""

    label: str
    index: int
    score: float

    def as_json(self) -> dict[str, object]:
        """The prediction as the HTTP interface shows it."""
        return {"label": self.label, "index": self.index, "score": round(self.score, 6)}


def classifications(
    output: NDArray[np.float32], head: ClassScores, labels: Sequence[str]
) -> list[Classification]:
    """The `head.top` likeliest classes of an output with one value per label, best first."""
    values = output.reshape(-1)
    scores = softmax(values) if head.type == "logits" else values
    order = np.argsort(-scores, kind="stable")[: head.top]
    return [Classification(labels[index], int(index), float(scores[index])) for index in order]
