"""Guesses the kind of a model without a sidecar from its metadata and shapes.

It guesses only if the shapes allow one interpretation or the exporter's metadata states it; the
user has to supply what is None.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from onnx import ModelProto

from models.downloads import labels as known_labels
from models.graph.graph import Graph
from models.graph.sizes import LARGEST_SIDE, Size
from models.tensors.arrays import Shape
from models.vision.box_lists import YoloX
from models.vision.head import VisionTask
from models.vision.model_families import (
    PARTS,
    About,
    Labels,
    cell_counts,
    described,
    ends_in_shares,
    every_operator,
    head_for,
    input_size,
    is_end_to_end,
    ssd_shapes,
    stride_of,
    takes_bytes,
    takes_pictures,
)
from models.vision.sidecar import Assumable, Sidecar
from protos.daemon.documents import Problem

# Data sets by the number of their classes, for each task.
_DATA_SETS: Mapping[VisionTask, Mapping[int, str]] = {
    "classification": {1000: "imagenet"},
    "detection": {80: "coco", 20: "voc"},
    "segmentation": {21: "voc"},
}
_TITLES = {"imagenet": "ImageNet's", "coco": "COCO's", "voc": "Pascal VOC's"}
# What ends a list of boxes, and what makes probabilities of scores.
_RANKING = frozenset({"TopK", "NonMaxSuppression"})
# Lists of boxes have as many dimensions as text, tokens and maps of depth.
_ROWS_OF_VALUES = 3
_METADATA = "its exporter's metadata says so"


@dataclass(frozen=True, slots=True)
class Guess:
    """The guess; `classes` is the number of labels needed, if any. `reasons`: why each part of it
    is believed that the file does not state. `possible`: the tasks that the outputs would allow, as
    a sentence; empty if the guess has evidence.
    """

    task: VisionTask | None = None
    classes: int = 0
    labels: Labels | None = None
    pixels: str | None = None
    reasons: Mapping[Assumable, str] = field(default_factory=dict)
    possible: str = ""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A task that the outputs allow: the number of its classes, and what speaks for it beside their
    shapes (empty: nothing).
    """

    classes: int
    evidence: str = ""


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


def guess(graph: Graph, told: Mapping[str, object], task: VisionTask | None, labels: int) -> Guess:
    """A guess about `graph`; `told` is its metadata, `task` and the number of `labels` are what is
    already known (None and 0 if unknown). Outputs that allow a task without anything that speaks
    for it are tensors.
    """
    names = _names(told)
    count = labels or len(names or ())
    if not takes_pictures(graph):
        return Guess(task or "tensor")
    allowed = {
        kind: reading
        for kind, reading in _readings(graph, count, told).items()
        if task in (None, kind) and (not count or reading.classes in (0, count))
    }
    pixels = "bytes" if takes_bytes(graph) else "unit" if "stride" in told else None
    possible = _possible(graph, allowed)
    readings = (
        allowed if task else {k: reading for k, reading in allowed.items() if reading.evidence}
    )
    written = _written_task(told)
    if written in readings:
        readings = {written: readings[written]}
    if len(readings) != 1:
        guessed = task or (None if readings else "tensor")
        return Guess(guessed, pixels=pixels, possible=possible)
    ((found, reading),) = readings.items()
    reasons: dict[Assumable, str] = {}
    if task is None and reading.evidence != _METADATA:
        reasons["task"] = f"{found}: {reading.evidence}"
    data_set = _DATA_SETS.get(found, {}).get(reading.classes)
    if not labels and names is None and data_set is not None:
        names = known_labels(data_set)
        if found == "segmentation":
            names = ("background", *names)
        reasons["labels"] = f"{_TITLES[data_set]}, by their number ({reading.classes})"
    return Guess(found, reading.classes, names, pixels, reasons)


def _possible(graph: Graph, readings: Mapping[VisionTask, _Reading]) -> str:
    """What the outputs may be, as a sentence."""
    what = {
        "classification": "scores of {} classes (or an embedding)",
        "detection": "boxes of {} classes (or text, tokens, a table)",
        "segmentation": "maps of {} classes (or depth, heat, features)",
        "image-to-image": "a picture",
    }
    shapes = ", ".join(str(graph.tensors[name].told_shape) for name in graph.outputs)
    if not readings:
        return ""
    several = " or ".join(what[task].format(reading.classes) for task, reading in readings.items())
    return f"its output {shapes} may be {several}, and nothing in the file says so"


def detector(graph: Graph, told: Mapping[str, object], name: str) -> Sidecar | None:
    """A sidecar for a detector whose boxes can be read; labels that nobody knows are numbers. None
    if it is not a detector, or its boxes have no form that is known.
    """
    found = guess(graph, told, "detection", 0)
    if not takes_pictures(graph) or not found.classes:
        return None
    reasons = dict(found.reasons)
    labels = found.labels or tuple(map(str, range(found.classes)))
    if found.labels is None:
        reasons["labels"] = "numbers: nothing says what the classes are called"
    head = head_for(graph, "detection", labels, found.pixels or "unit", told)
    if head is None:
        return None
    pixels = "bytes" if isinstance(head, YoloX) else found.pixels or "unit"
    about = About(name, f"{name}.onnx")
    try:
        return described(graph, "detection", head, labels, pixels, about, assumed=reasons)
    except Problem:
        return None


def _readings(graph: Graph, count: int, told: Mapping[str, object]) -> dict[VisionTask, _Reading]:
    """Tasks that the outputs' shapes allow, each with the number of classes that it implies, else
    `count`, and what speaks for it.
    """
    shapes = [graph.shape(name) for name in graph.outputs]
    size, first = input_size(graph), shapes[0]
    found: dict[VisionTask, _Reading] = {}
    shares = ends_in_shares(graph)

    def add(task: VisionTask, classes: int, evidence: str = "") -> None:
        if _written_task(told) == task:
            evidence = _METADATA
        elif count and classes == count:
            evidence = f"it has as many classes as there are labels ({count})"
        elif classes in _DATA_SETS.get(task, {}) and len(first) != _ROWS_OF_VALUES:
            title = _TITLES[_DATA_SETS[task][classes]]
            evidence = evidence or f"it has as many classes as {title[:-2]} ({classes})"
        found[task] = _Reading(classes, evidence)

    if len(shapes) == 1 and len(first) in (2, 4) and prod(first) == max(first) > 1:
        add("classification", prod(first), f"it ends in {shares}" if shares else "")
    is_final = len(shapes) == 1 and is_end_to_end(first, size, count, told) is not False
    has_parts = told.get("task") in PARTS and count > 0
    if is_final or has_parts:
        add("detection", count, _ranking(graph))
    elif (classes := _classes_found(shapes, size, count)) is not None:
        add("detection", classes, _boxes(graph, shapes, size))
    if len(shapes) == 1 and len(first) == 4 and min(first[2:]) > 1:
        channels = first[1]
        if "detection" not in found or channels == count:
            is_map = shares == "Softmax" and channels > 1
            add("segmentation", channels, "it ends in Softmax" if is_map else "")
        if channels in (1, 3) and min(first[2:]) >= min(size):
            larger = channels == 3 and min(first[2:]) > min(size)
            add("image-to-image", 0, "its output is a larger picture" if larger else "")
    return found


def _ranking(graph: Graph) -> str:
    ranks = sorted(_RANKING & every_operator(graph))
    return f"it ranks boxes itself ({', '.join(ranks)})" if ranks else ""


def _boxes(graph: Graph, shapes: Sequence[Shape], size: tuple[int, int]) -> str:
    """What speaks for boxes in these outputs."""
    if len(shapes) != 1:
        return "its outputs are boxes with scores, or grids of them"
    if len(shapes[0]) == 4:
        return ""  # one grid: only the number of its classes can speak for it
    if max(shapes[0][1:]) in cell_counts(size):
        return "its output has a box for each cell of a detector's grids"
    return _ranking(graph)


def _classes_found(shapes: Sequence[Shape], size: tuple[int, int], count: int) -> int | None:
    """The number of classes, if the outputs are a detector's."""
    if len(shapes) == 1 and len(shapes[0]) == 3:
        rows, columns = shapes[0][1:]
        if count and columns == 4 + count != rows:
            return count
        return columns - 5 if rows > columns else rows - 4
    if len(shapes) == 2 and (both := ssd_shapes(shapes)) is not None:
        return both[1][2] - 1
    grids = [shape for shape in shapes if len(shape) == 4 and stride_of(shape, size)]
    if len(grids) != len(shapes) or not grids:
        return None
    anchors = 5 if len(grids) == 1 else 3
    per_anchor = {grid[1] / anchors - 5 for grid in grids}
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


def _written_task(told: Mapping[str, object]) -> VisionTask | None:
    tasks: dict[object, VisionTask] = {
        "detect": "detection",
        "classify": "classification",
        "segment": "detection",
        "pose": "detection",
        "obb": "detection",
    }
    written = told.get("task")
    return tasks.get(written) if isinstance(written, str) else None
