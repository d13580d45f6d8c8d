"""From a model's outputs to what the user asked for, as its sidecar says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, assert_never

import numpy as np
from numpy.typing import NDArray

from models import ssd
from models.classification import Classification, classifications
from models.detection import Detection, detections
from models.heads import (
    ClassMap,
    ClassScores,
    EndToEnd,
    Repainted,
    Ssd,
    YoloBoxes,
    YoloV2,
    YoloV3,
    YoloX,
)
from models.preprocess import Placement
from models.repainting import Repainting, repainted
from models.segmentation import Segment, segments
from models.sidecar import Sidecar
from models.yolo import decode_boxes, decode_cells, decode_grid, decode_grids, decode_rows
from protos.errors import BadRequest

Output = NDArray[np.float32]
ANY = -1  # a size that a head does not prescribe


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


Prediction = Classification | Detection | Segment | Repainting | Tensor


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
    values = {name: output.astype(np.float32, copy=False) for name, output in outputs.items()}
    first, *_ = values.values()
    labels, size = sidecar.labels, sidecar.input.size
    match sidecar.head:
        case ClassScores() as head:
            return [*classifications(first, head, labels)]
        case ClassMap() as head:
            return [*segments(first, head, labels, placement, size)]
        case Repainted() as head:
            return [repainted(first, head, placement, size)]
        case YoloV2() as head:
            candidates = decode_grid(first, head)
        case YoloV3() as head:
            candidates = decode_grids(list(values.values()), head)
        case YoloBoxes() as head:
            candidates = decode_boxes(first, head)
        case EndToEnd() as head:
            candidates = decode_rows(first, len(labels))
        case YoloX() as head:
            candidates = decode_cells(first, head, size)
        case Ssd() as head:
            candidates = ssd.decode(values[head.boxes], values[head.scores], head, size)
        case never:
            assert_never(never)
    return [*detections(candidates, head, labels, placement)]


def check_outputs(sidecar: Sidecar, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse a model whose outputs (name -> shape) do not fit the sidecar; once, at loading.

    Raises:
        OutputMismatch: see `predictions`.
    """
    if sidecar.head is None:
        return
    wanted = wanted_shapes(sidecar, {name: tuple(shape) for name, shape in shapes.items()})
    for name in wanted.keys() - shapes.keys():
        raise _unfit(sidecar, f"the head reads an output {name!r}, which the model does not have")
    if len(wanted) != len(shapes):
        raise _unfit(sidecar, f"the head reads {len(wanted)} outputs, the model has {len(shapes)}")
    for name, shape in shapes.items():
        if not _fits(tuple(shape), wanted[name]):
            told = tuple("any" if size == ANY else size for size in wanted[name])
            raise _unfit(
                sidecar, f"output {name!r} has shape {tuple(shape)}, the sidecar says {told}"
            )


def wanted_shapes(
    sidecar: Sidecar, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """The shapes that the head needs, by output; `ANY` where it takes any size. `shapes` are those
    of the model, for names and where several will do.
    """
    classes = len(sidecar.labels)
    names, first = list(shapes) or ["?"], next(iter(shapes.values()), ())
    wanted: dict[str, tuple[int, ...]]
    match sidecar.head:
        case None:
            wanted = dict(shapes)
        case ClassScores():
            wanted = {names[0]: first if prod(first) == classes else (1, classes)}
        case YoloV2() as head:
            wanted = {names[0]: _grid(sidecar, len(head.anchors), head.stride)}
        case YoloV3() as head:
            scales = zip(head.anchors, head.strides, strict=True)
            grids = [_grid(sidecar, len(anchors), stride) for anchors, stride in scales]
            known = [*names, *(f"grid {n}" for n in range(len(names), len(grids)))]
            wanted = dict(zip(known, grids, strict=False))
        case YoloBoxes(type="yolov5"):
            wanted = {names[0]: (1, ANY, 5 + classes)}
        case YoloBoxes():
            wanted = {names[0]: (1, 4 + classes, ANY)}
        case EndToEnd():
            wanted = {names[0]: (1, ANY, 6)}
        case YoloX() as head:
            wanted = {names[0]: (1, head.cells(sidecar.input.size), 5 + classes)}
        case Ssd() as head:
            count = len(head.priors) or ANY
            wanted = {head.boxes: (1, count, 4), head.scores: (1, count, 1 + classes)}
        case ClassMap():
            wanted = {names[0]: (1, classes, ANY, ANY)}
        case Repainted():
            wanted = {names[0]: (1, 1 if first[1:2] == (1,) else 3, ANY, ANY)}
        case never:
            assert_never(never)
    return wanted


def _grid(sidecar: Sidecar, anchors: int, stride: int) -> tuple[int, ...]:
    height, width = sidecar.input.size
    return (1, anchors * (5 + len(sidecar.labels)), height // stride, width // stride)


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        want in (size, ANY) for size, want in zip(shape, wanted, strict=True)
    )


def _unfit(sidecar: Sidecar, problem: str) -> OutputMismatch:
    cure = "Correct labels, head and input size in the sidecar, or make its task tensor"
    return OutputMismatch(model=sidecar.name, problem=problem, cure=cure)
