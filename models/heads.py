"""Heads: how a model's outputs are to be read, as its sidecar says.

A new head is a dataclass and a reader here, and a decoder in `predictions`. Scores of a detection
head are of the classes in `labels`, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from models.strict import Fields

Task = Literal["classification", "detection", "segmentation", "image-to-image", "tensor"]

TASKS: tuple[Task, ...] = (
    "classification",
    "detection",
    "segmentation",
    "image-to-image",
    "tensor",
)
LARGEST_SIDE = 8192  # pixels of a model's input
LARGEST_TOP = 1000

Anchors = tuple[tuple[float, float], ...]
Prior = tuple[float, float, float, float]
Corners = Literal["xyxy", "yxyx"]


@dataclass(frozen=True, slots=True)
class ClassScores:
    """An output (1, classes), also with trailing ones: probabilities, or logits to normalise."""

    type: Literal["softmax", "logits"]
    top: int


@dataclass(frozen=True, slots=True)
class YoloV2:
    """An output grid (1, anchors * (5 + classes), H, W).

    Anchors are (width, height) in cells of `stride` pixels of the model's input.
    """

    type: Literal["yolov2"]
    anchors: Anchors
    stride: int
    min_score: float
    nms_iou: float


@dataclass(frozen=True, slots=True)
class YoloV3:
    """Grids (1, anchors * (5 + classes), H, W), one per stride and in the order of the outputs,
    before any sigmoid. `anchors[i]` are (width, height) in pixels of the model's input.
    """

    type: Literal["yolov3"]
    anchors: tuple[Anchors, ...]
    strides: tuple[int, ...]
    min_score: float
    nms_iou: float


@dataclass(frozen=True, slots=True)
class YoloBoxes:
    """Decoded boxes in pixels of the model's input: centre x, y, width, height, then scores.

    `yolov5`: an output (1, boxes, 5 + classes), the fifth value how sure it is of any object.
    `yolov8`: an output (1, 4 + classes, boxes).
    """

    type: Literal["yolov5", "yolov8"]
    min_score: float
    nms_iou: float


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """An output (1, boxes, 6), from which the graph has removed what overlaps (YOLOv10, YOLO26):
    x_min, y_min, x_max, y_max in pixels of the model's input, score, index of the class.
    """

    type: Literal["end2end"]
    min_score: float


@dataclass(frozen=True, slots=True)
class YoloX:
    """An output (1, cells, 5 + classes): the cells of one grid after the other, row by row; what is
    a likelihood is one already. `strides` are of the grids, in pixels of the model's input.
    """

    type: Literal["yolox"]
    strides: tuple[int, ...]
    min_score: float
    nms_iou: float

    def cells(self, size: tuple[int, int]) -> int:
        """Of all grids, for an input of `size` (height, width)."""
        return sum((size[0] // stride) * (size[1] // stride) for stride in self.strides)


@dataclass(frozen=True, slots=True)
class Ssd:
    """Two outputs: `boxes` (1, N, 4) and `scores` (1, N, 1 + classes), class 0 the background.

    `logits`: scores are to be normalised. Without `priors`, boxes are corners in shares of the
    model's input, in the order `corners`. With them (centre x, y, width, height in shares), boxes
    are offsets, to be scaled by `variances`.
    """

    type: Literal["ssd"]
    boxes: str
    scores: str
    logits: bool
    corners: Corners
    priors: tuple[Prior, ...]
    variances: tuple[float, float]
    min_score: float
    nms_iou: float


@dataclass(frozen=True, slots=True)
class ClassMap:
    """An output (1, classes, H, W) over the model's input.

    `argmax`: a pixel is of the class with the largest value. `threshold`: of every class whose
    value is above `threshold`. The class `background` is not reported.
    """

    type: Literal["argmax", "threshold"]
    threshold: float
    background: str | None


@dataclass(frozen=True, slots=True)
class Repainted:
    """An output (1, 3 or 1, H, W): another picture, pixel = value * scale + offset, RGB or grey."""

    type: Literal["pixels"]
    scale: float
    offset: float


Detector = YoloV2 | YoloV3 | YoloBoxes | EndToEnd | YoloX | Ssd
Head = ClassScores | Detector | ClassMap | Repainted


def read_head(fields: Fields, task: Task) -> Head | None:
    """The key `head` of a sidecar for `task`; a tensor model has none.

    Raises:
        Problem: it is missing, or a key of it is wrong.
    """
    if task == "tensor":
        fields.absent("head", "a tensor model's output is returned as it is")
        return None
    inner = fields.inner("head")
    known = _HEADS[task]
    read = known[inner.choice("type", tuple(known))](inner)
    inner.end()
    return read


def _class_scores(fields: Fields) -> Head:
    return ClassScores(
        type=fields.choice("type", ("softmax", "logits")),
        top=fields.integer("top", 1, LARGEST_TOP),
    )


def _yolo_v2(fields: Fields) -> Head:
    return YoloV2(
        type=fields.choice("type", ("yolov2",)),
        anchors=fields.pairs("anchors", above=0.0),
        stride=fields.integer("stride", 1, LARGEST_SIDE),
        min_score=_share(fields, "min_score"),
        nms_iou=_share(fields, "nms_iou"),
    )


def _yolo_v3(fields: Fields) -> Head:
    anchors = fields.groups_of_pairs("anchors", above=0.0)
    return YoloV3(
        type=fields.choice("type", ("yolov3",)),
        anchors=anchors,
        strides=fields.integers("strides", len(anchors), 1, LARGEST_SIDE),
        min_score=_share(fields, "min_score"),
        nms_iou=_share(fields, "nms_iou"),
    )


def _yolo_boxes(fields: Fields) -> Head:
    return YoloBoxes(
        type=fields.choice("type", ("yolov5", "yolov8")),
        min_score=_share(fields, "min_score"),
        nms_iou=_share(fields, "nms_iou"),
    )


def _end_to_end(fields: Fields) -> Head:
    return EndToEnd(type=fields.choice("type", ("end2end",)), min_score=_share(fields, "min_score"))


def _yolo_x(fields: Fields) -> Head:
    return YoloX(
        type=fields.choice("type", ("yolox",)),
        strides=fields.integers("strides", None, 1, LARGEST_SIDE),
        min_score=_share(fields, "min_score"),
        nms_iou=_share(fields, "nms_iou"),
    )


def _ssd(fields: Fields) -> Head:
    return Ssd(
        type=fields.choice("type", ("ssd",)),
        boxes=fields.text("boxes"),
        scores=fields.text("scores"),
        logits=fields.flag("logits"),
        corners=fields.choice("corners", ("xyxy", "yxyx")),
        priors=fields.fours("priors"),
        variances=fields.two("variances", above=0.0),
        min_score=_share(fields, "min_score"),
        nms_iou=_share(fields, "nms_iou"),
    )


def _class_map(fields: Fields) -> Head:
    return ClassMap(
        type=fields.choice("type", ("argmax", "threshold")),
        threshold=fields.number("threshold"),
        background=fields.text_or_null("background"),
    )


def _repainted(fields: Fields) -> Head:
    return Repainted(
        type=fields.choice("type", ("pixels",)),
        scale=fields.number("scale", above=0.0),
        offset=fields.number("offset"),
    )


def _share(fields: Fields, key: str) -> float:
    return fields.number(key, above=0.0, at_most=1.0)


_HEADS: Mapping[Task, Mapping[str, Callable[[Fields], Head]]] = {
    "classification": {"softmax": _class_scores, "logits": _class_scores},
    "detection": {
        "yolov2": _yolo_v2,
        "yolov3": _yolo_v3,
        "yolov5": _yolo_boxes,
        "yolov8": _yolo_boxes,
        "end2end": _end_to_end,
        "yolox": _yolo_x,
        "ssd": _ssd,
    },
    "segmentation": {"argmax": _class_map, "threshold": _class_map},
    "image-to-image": {"pixels": _repainted},
}
