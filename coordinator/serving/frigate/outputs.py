"""The outputs of a network as Frigate's rows: class, score, y_min, x_min, y_max, x_max, in [0, 1].

Each kind of Frigate's `model_type` is read as Frigate's own detectors read it, with thresholds of
0.4; boxes in pixels of the model's input are divided by its size.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coordinator.serving.frigate.detector_messages import COLUMNS, ROWS, ModelType
from models.tensors.boxes import Span
from models.tensors.selection import NO_SELECTION, Selection, Selections
from models.vision.box_lists import YoloX
from models.vision.detection import Candidates, best, iou, likeliest, numbered, suppressed
from models.vision.head import OutputShapes, PictureSize, softmax
from protos.errors import BadRequest

Array = NDArray[np.float32]
OutputArrays = Sequence[np.ndarray]

LEAST_SCORE = 0.4
MOST_OVERLAP = 0.4
# Kinds whose overlapping boxes Frigate's own detectors drop.
_SUPPRESSED = frozenset({"yolox", "yologeneric", "rfdetr", "dfine"})
# Anchors of YOLOv4 and YOLOv7, in pixels, by stride.
_GRIDS = (
    ((12, 16), (19, 36), (40, 28)),
    ((36, 75), (76, 55), (72, 146)),
    ((142, 110), (192, 243), (459, 401)),
)
_YOLOX = YoloX("yolox", (8, 16, 32), LEAST_SCORE, MOST_OVERLAP)


def rows_of(kind: ModelType, outputs: OutputArrays, size: PictureSize) -> Array:
    """(n, 6) rows, best first, at most 20, of a model whose input has `size` (height, width).

    Raises:
        BadRequest: the outputs are not those of this kind of model.
        NotFiniteAnswer: as `best`.
    """
    try:
        with np.errstate(all="ignore"):  # `best` refuses what becomes NaN
            candidates = _KINDS[kind](outputs, size)
    except (ValueError, IndexError, TypeError) as error:
        shapes = ", ".join("x".join(map(str, output.shape)) for output in outputs)
        raise BadRequest(
            cause=f"the outputs ({shapes}) are not those of a {kind} model: {error}",
            cure="Set `model_type` in Frigate's `model:` section to what the file is.",
        ) from error
    found = best(candidates, LEAST_SCORE)
    if kind in _SUPPRESSED:
        overlap = iou(found.boxes, found.boxes)
        found = suppressed(found, overlap, MOST_OVERLAP, across_classes=True)
    found = found.take(np.arange(min(ROWS, len(found.scores))))
    height, width = size
    rows = np.zeros((len(found.scores), COLUMNS), np.float32)
    rows[:, 0], rows[:, 1] = found.classes, found.scores
    scale = np.array([height, width, height, width], np.float32)
    rows[:, 2:] = np.clip(found.boxes[:, [1, 0, 3, 2]] / scale, 0.0, 1.0)
    return rows


def selections_of(kind: ModelType, shapes: OutputShapes) -> Selections:
    """What `rows_of` looks at of outputs of these shapes, where that is not everything."""
    if len(shapes) != 1:
        return NO_SELECTION
    ((name, shape),) = shapes.items()
    if kind == "yologeneric" and len(shape) == 3 and shape[1] < shape[2]:
        return {name: Selection(2, 1, Span(4, shape[1]), LEAST_SCORE)}
    if kind == "yolox" and len(shape) == 3:
        return _YOLOX.selections(shapes, shape[2] - 5)
    return NO_SELECTION


def _yologeneric(outputs: OutputArrays, size: PictureSize) -> Candidates:
    """(1, 4 + classes, boxes), or with these two exchanged: centre, width and height in pixels,
    then scores. Or the grids of YOLOv4 and YOLOv7.
    """
    if len(outputs) == len(_GRIDS):
        return _grids(outputs, size)
    (raw,) = outputs
    rows = _two(raw[0])
    rows = rows.T if rows.shape[0] < rows.shape[1] else rows
    return likeliest(rows[:, 0:2], rows[:, 2:4], rows[:, 4:])


def _grids(outputs: OutputArrays, size: PictureSize) -> Candidates:
    """(1, 3 x (5 + classes), rows, columns) for each stride, with Sigmoid [YOLOv4]."""
    found = []
    for raw, stride, anchors in zip(outputs, (8, 16, 32), _GRIDS, strict=True):
        _, channels, rows, columns = raw.shape
        if (rows * stride, columns * stride) != size:
            raise ValueError(f"a grid of {rows}x{columns} cells where {stride} pixels make one")
        values = raw[0].reshape(3, channels // 3, rows, columns).transpose(0, 2, 3, 1)
        cells = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1)
        centres = (2 * values[..., 0:2] - 0.5 + cells) * stride
        sides = (2 * values[..., 2:4]) ** 2 * np.array(anchors, np.float32)[:, None, None]
        scores = values[..., 5:] * values[..., 4:5]
        parts = (centres, sides, scores)
        found.append([part.reshape(-1, part.shape[-1]) for part in parts])
    centres, sides, scores = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    return likeliest(centres, sides, scores)


def _yolox(outputs: OutputArrays, size: PictureSize) -> Candidates:
    """(1, cells, 5 + classes), undecoded."""
    (raw,) = outputs
    return _YOLOX.candidates({"output": raw}, raw.shape[-1] - 5, size)


def _yolonas(outputs: OutputArrays, size: PictureSize) -> Candidates:
    """(boxes, 7) after suppression: picture, x_min, y_min, x_max, y_max in pixels, score, class."""
    del size
    rows = _two(outputs[0].reshape(-1, outputs[0].shape[-1]), columns=7)
    rows = rows[~(rows[:, 6] < 0)]
    return _candidates(rows[:, 1:5], rows[:, 6], rows[:, 5])


def _rfdetr(outputs: OutputArrays, size: PictureSize) -> Candidates:
    """Boxes (1, n, 4) as shares of the input, and logits (1, n, 1 + classes): the first is none."""
    boxes, logits = _two(outputs[0][0], columns=4), _two(outputs[1][0])
    shares = softmax(logits)[:, 1:]
    height, width = size
    pixels = boxes * np.array([width, height, width, height], np.float32)
    return likeliest(pixels[:, 0:2], pixels[:, 2:4], shares)


def _dfine(outputs: OutputArrays, size: PictureSize) -> Candidates:
    """Labels (1, n), boxes (1, n, 4) from corner to corner in pixels, scores (1, n)."""
    del size
    labels, boxes, scores = outputs
    return _candidates(_two(boxes[0], columns=4), labels[0], scores[0])


def _ssd(outputs: OutputArrays, size: PictureSize) -> Candidates:
    """(1, 1, n, 7): picture, class, score, x_min, y_min, x_max, y_max as shares of the input; or
    TensorFlow's boxes (1, n, 4) from y_min on, classes (1, n), scores (1, n), count.
    """
    height, width = size
    scale = np.array([width, height, width, height], np.float32)
    if len(outputs) == 1:
        rows = _two(outputs[0].reshape(-1, outputs[0].shape[-1]), columns=7)
        rows = rows[~(rows[:, 0] < 0)]
        return _candidates(rows[:, 3:7] * scale, rows[:, 1], rows[:, 2])
    boxes, classes, scores = outputs[0][0], outputs[1][0], outputs[2][0]
    return _candidates(_two(boxes, columns=4)[:, [1, 0, 3, 2]] * scale, classes, scores)


_KINDS: Mapping[ModelType, Callable[[OutputArrays, PictureSize], Candidates]] = {
    "ssd": _ssd,
    "yolox": _yolox,
    "yolonas": _yolonas,
    "yologeneric": _yologeneric,
    "rfdetr": _rfdetr,
    "dfine": _dfine,
}


def _candidates(boxes: np.ndarray, classes: np.ndarray, scores: np.ndarray) -> Candidates:
    if not len(boxes) == len(classes) == len(scores):
        raise ValueError(f"{len(boxes)} boxes, {len(classes)} classes, {len(scores)} scores")
    return numbered(boxes, classes, scores)


def _two(array: np.ndarray, columns: int = 0) -> np.ndarray:
    if array.ndim != 2 or (columns and array.shape[1] != columns):
        wanted = f"{columns} columns" if columns else "two axes"
        raise ValueError(f"an array of shape {array.shape} where {wanted} are expected")
    return array
