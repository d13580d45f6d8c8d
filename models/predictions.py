"""From a model's outputs to what the user asked for, as its sidecar says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, assert_never

import numpy as np
from numpy.typing import NDArray

from models.classification import Classification, classifications
from models.detection import Detection, detections
from models.preprocess import Placement
from models.sidecar import ClassScores, Sidecar, YoloV2
from protos.errors import BadRequest

Output = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An output of a model that has no head: its values as they are."""

    name: str
    values: Output

    def as_json(self) -> dict[str, object]:
        """Name, shape and the flat row-major values."""
        return {
            "name": self.name,
            "shape": list(self.values.shape),
            "data": self.values.ravel().tolist(),
        }


Prediction = Classification | Detection | Tensor


class OutputMismatch(BadRequest):
    """A model's output does not have the shape that its sidecar promises."""

    code: ClassVar[str] = "bad_sidecar"

    def __init__(self, *, model: str, problem: str, cure: str) -> None:
        super().__init__(
            cause=f"The sidecar of {model} does not fit its model: {problem}", cure=cure
        )
        self.model = model
        self.problem = problem


def predictions(
    sidecar: Sidecar, outputs: Mapping[str, Output], placement: Placement
) -> list[Prediction]:
    """What the model saw, best first; boxes in pixels of the sent image.

    Raises:
        OutputMismatch: the outputs are not of the shape that the sidecar's head needs.
    """
    check_outputs(sidecar, {name: output.shape for name, output in outputs.items()})
    if sidecar.head is None:
        return [Tensor(name, output) for name, output in outputs.items()]
    (output,) = outputs.values()
    values = output.astype(np.float32, copy=False)
    match sidecar.head:
        case ClassScores() as head:
            return [*classifications(values, head, sidecar.labels)]
        case YoloV2() as head:
            return [*detections(values, head, sidecar.labels, placement)]
        case never:
            assert_never(never)


def check_outputs(sidecar: Sidecar, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse a model whose outputs (name -> shape) do not fit the sidecar; once, at loading.

    Raises:
        OutputMismatch: see `predictions`.
    """
    if sidecar.head is None:
        return
    if len(shapes) != 1:
        raise OutputMismatch(
            model=sidecar.name,
            problem=f"a {sidecar.task} head reads one output, the model has {len(shapes)}",
            cure="Cut the model to one output, or set the task to tensor and remove the head",
        )
    ((name, shape),) = shapes.items()
    wanted = _wanted(sidecar, tuple(shape))
    if tuple(shape) != wanted:
        raise OutputMismatch(
            model=sidecar.name,
            problem=f"output {name!r} has shape {tuple(shape)}, the sidecar says {wanted}",
            cure="Correct labels, head and input size in the sidecar",
        )


def _wanted(sidecar: Sidecar, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that the head needs; ones around a classifier's scores do not matter."""
    classes = len(sidecar.labels)
    match sidecar.head:
        case None:
            return shape
        case ClassScores():
            return shape if prod(shape) == classes else (1, classes)
        case YoloV2() as head:
            height, width = sidecar.input.size
            channels = len(head.anchors) * (5 + classes)
            return (1, channels, height // head.stride, width // head.stride)
        case never:
            assert_never(never)
