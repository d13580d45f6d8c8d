"""Guesses the kind of a model without a sidecar from its metadata and shapes.

It guesses only if the shapes allow one interpretation or the exporter's metadata states it; the
user has to supply what is None.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from onnx import ModelProto

from models.documents import Problem
from models.downloads import labels as known_labels
from models.graph import Graph
from models.sizes import LARGEST_SIDE, Size
from models.usual import (
    PARTS,
    About,
    Labels,
    Shape,
    described,
    head_for,
    input_size,
    is_end_to_end,
    ssd_shapes,
    stride_of,
)
from models.vision.head import Task
from models.vision.sidecar import Sidecar
from models.vision.yolox import YoloX

# Data sets by the number of their classes, for each task.
_DATA_SETS: Mapping[Task, Mapping[int, str]] = {
    "classification": {1000: "imagenet"},
    "detection": {80: "coco", 20: "voc"},
    "segmentation": {21: "voc"},
}
# Types of a picture's values.
_PICTURES = ("float32", "float16")


@dataclass(frozen=True, slots=True)
class Guess:
    """The guess; `classes` is the number of labels needed, if any."""

    task: Task | None = None
    classes: int = 0
    labels: Labels | None = None
    pixels: str | None = None


def metadata(proto: ModelProto) -> dict[str, object]:
    """A metadata value of the exporter: Ultralytics writes Python literals."""
    found: dict[str, object] = {}
    for item in proto.metadata_props:
        try:
            found[item.key] = ast.literal_eval(item.value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found[item.key] = item.value
    return found


def written_size(proto: ModelProto) -> Size | None:
    """The height and width of the pictures that a model was exported for: Ultralytics' imgsz."""
    match metadata(proto).get("imgsz"):
        case [int() as height, int() as width]:
            sound = min(height, width) >= 1 and max(height, width) <= LARGEST_SIDE
            return Size(height, width) if sound else None
        case _:
            return None


def takes_pictures(graph: Graph) -> bool:
    """Whether the graph's only input is (1, 3, H, W), float32 or float16."""
    if len(graph.inputs) != 1:
        return False
    info = graph.tensors[graph.inputs[0]]
    return info.shape[:2] == (1, 3) and len(info.shape) == 4 and str(info.dtype) in _PICTURES


def guess(graph: Graph, told: Mapping[str, object], task: Task | None, labels: int) -> Guess:
    """A guess about `graph`; `told` is its metadata, `task` and the number of `labels` are what is
    already known (None and 0 if unknown).
    """
    names = _names(told)
    count = labels or len(names or ())
    if not takes_pictures(graph):
        return Guess(task or "tensor")
    readings = {
        each: classes
        for each, classes in _readings(graph, count, told).items()
        if task in (None, each) and (not count or classes == count)
    }
    written = _written_task(told)
    if written in readings:
        readings = {written: readings[written]}
    if len(readings) != 1:
        return Guess(task)
    ((task, classes),) = readings.items()
    if not labels and names is None and classes in _DATA_SETS.get(task, {}):
        names = known_labels(_DATA_SETS[task][classes])
        if task == "segmentation":
            names = ("background", *names)
    return Guess(task, classes, names, "unit" if "stride" in told else None)


def detector(graph: Graph, told: Mapping[str, object], name: str) -> Sidecar | None:
    """A sidecar for a detector whose boxes can be read; labels that nobody knows are numbers. None
    if it is not a detector, or its boxes have no form that is known.
    """
    found = guess(graph, told, "detection", 0)
    if not takes_pictures(graph) or not found.classes:
        return None
    labels = found.labels or tuple(map(str, range(found.classes)))
    head = head_for(graph, "detection", labels, found.pixels or "unit", told)
    if head is None:
        return None
    pixels = "bytes" if isinstance(head, YoloX) else found.pixels or "unit"
    try:
        return described(graph, "detection", head, labels, pixels, About(name, f"{name}.onnx"))
    except Problem:
        return None


def _readings(graph: Graph, count: int, told: Mapping[str, object]) -> dict[Task, int]:
    """Tasks that the outputs' shapes allow, with the number of classes that each implies, else
    `count`.
    """
    shapes = [graph.shape(name) for name in graph.outputs]
    size = input_size(graph)
    found: dict[Task, int] = {}
    if len(shapes) == 1 and len(shapes[0]) in (2, 4) and prod(shapes[0]) == max(shapes[0]) > 1:
        found["classification"] = prod(shapes[0])
    is_final = len(shapes) == 1 and is_end_to_end(shapes[0], size, count, told) is not False
    has_parts = told.get("task") in PARTS and count > 0
    if is_final or has_parts:
        found["detection"] = count
    elif (classes := _classes_found(shapes, size, count)) is not None:
        found["detection"] = classes
    if len(shapes) == 1 and len(shapes[0]) == 4 and min(shapes[0][2:]) > 1:
        channels = shapes[0][1]
        if "detection" not in found or channels == count:
            found["segmentation"] = channels
        if channels in (1, 3) and min(shapes[0][2:]) >= min(size):
            found["image-to-image"] = 0
    return found


def _classes_found(shapes: Sequence[Shape], size: tuple[int, int], count: int) -> int | None:
    """The number of classes, if the outputs are a detector's."""
    if len(shapes) == 1 and len(shapes[0]) == 3:
        rows, columns = shapes[0][1:]
        if count and columns == 4 + count != rows:
            return count
        return columns - 5 if rows > columns else rows - 4
    if len(shapes) == 2 and (both := ssd_shapes(shapes)) is not None:
        return both[1][2] - 1
    grids = [each for each in shapes if len(each) == 4 and stride_of(each, size)]
    if len(grids) != len(shapes) or not grids:
        return None
    anchors = 5 if len(grids) == 1 else 3
    per_anchor = {each[1] / anchors - 5 for each in grids}
    if len(per_anchor) != 1:
        return None
    (classes,) = per_anchor
    usual = classes in _DATA_SETS["detection"] or classes == count
    return int(classes) if classes >= 1 and classes.is_integer() and usual else None


def _names(told: Mapping[str, object]) -> Labels | None:
    """Ultralytics' names: {0: "person", 1: "bicycle", ...}."""
    match told.get("names"):
        case dict() as names if names and all(index in names for index in range(len(names))):
            return tuple(str(names[index]) for index in range(len(names)))
        case [*names] if names:
            return tuple(map(str, names))
        case _:
            return None


def _written_task(told: Mapping[str, object]) -> Task | None:
    tasks: dict[object, Task] = {
        "detect": "detection",
        "classify": "classification",
        "segment": "detection",
        "pose": "detection",
        "obb": "detection",
    }
    written = told.get("task")
    return tasks.get(written) if isinstance(written, str) else None
