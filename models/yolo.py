"""Boxes from the outputs of the YOLO family."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.detection import LARGEST_RAW, Candidates, Values, sigmoid, softmax
from models.heads import Anchors, YoloBoxes, YoloV2, YoloV3, YoloX


def decode_grid(grid: Values, head: YoloV2) -> Candidates:
    """Every anchor of every cell with its likeliest class.

    With raw values tx, ty, tw, th, to and the class logits t at channel a * (5 + classes) + k:
    x = (sigmoid(tx) + column) * stride, w = anchor_w * exp(tw) * stride,
    score = sigmoid(to) * softmax(t)                              [YOLO9000, section 2]
    """
    raw = _per_anchor(grid, len(head.anchors))
    cells = tuple((w * head.stride, h * head.stride) for w, h in head.anchors)
    scores = sigmoid(raw[..., 4:5]) * softmax(raw[..., 5:])
    return _likeliest(*_centre_and_size(raw, cells, head.stride), scores)


def decode_grids(grids: Sequence[Values], head: YoloV3) -> Candidates:
    """Every anchor of every cell of every grid: as YOLOv2, with anchors in pixels and
    score = sigmoid(to) * sigmoid(t): classes do not exclude each other [YOLOv3, section 2].
    """
    parts = []
    for grid, anchors, stride in zip(grids, head.anchors, head.strides, strict=True):
        raw = _per_anchor(grid, len(anchors))
        scores = sigmoid(raw[..., 4:5]) * sigmoid(raw[..., 5:])
        parts.append(_likeliest(*_centre_and_size(raw, anchors, stride), scores))
    return Candidates(
        np.concatenate([part.boxes for part in parts]),
        np.concatenate([part.classes for part in parts]),
        np.concatenate([part.scores for part in parts]),
    )


def decode_boxes(output: Values, head: YoloBoxes) -> Candidates:
    """Boxes that the graph has decoded itself: (1, N, 5 + classes), or (1, 4 + classes, N)."""
    if head.type == "yolov5":
        rows = output[0]
        scores = rows[:, 4:5] * rows[:, 5:]
    else:
        rows = output[0].T
        scores = rows[:, 4:]
    return _likeliest(rows[:, 0:2], rows[:, 2:4], scores)


def decode_rows(output: Values, classes: int) -> Candidates:
    """Rows (1, N, 6) that are boxes already; those of none of the `classes` are no boxes."""
    rows = output[0]
    index = np.rint(rows[:, 5])
    rows = rows[(index >= 0) & (index < classes)]
    return Candidates(
        rows[:, :4].astype(np.float32), np.rint(rows[:, 5]).astype(np.int64), rows[:, 4]
    )


def decode_cells(output: Values, head: YoloX, size: tuple[int, int]) -> Candidates:
    """A box for every cell of every grid, for an input of `size` (height, width).

    With raw values tx, ty, tw, th of a cell: x = (tx + column) * stride, w = exp(tw) * stride,
    score = objectness * class                                    [YOLOX, section 2.1]
    """
    corners, strides = [], []
    for stride in head.strides:
        rows, columns = size[0] // stride, size[1] // stride
        grid = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(-1, 2)
        corners.append(grid.astype(np.float32))
        strides.append(np.full((len(grid), 1), stride, np.float32))
    raw, stride_of = output[0], np.concatenate(strides)
    centre = (raw[:, 0:2] + np.concatenate(corners)) * stride_of
    sides = np.exp(np.clip(raw[:, 2:4], -LARGEST_RAW, LARGEST_RAW)) * stride_of
    return _likeliest(centre, sides, raw[:, 4:5] * raw[:, 5:])


def _per_anchor(grid: Values, anchors: int) -> Values:
    """(1, anchors * values, H, W) as (H, W, anchors, values)."""
    _, _, rows, columns = grid.shape
    return grid.reshape(anchors, -1, rows, columns).transpose(2, 3, 0, 1)


def _centre_and_size(raw: Values, anchors: Anchors, stride: int) -> tuple[Values, Values]:
    """Of (H, W, anchors, values), in pixels; `anchors` too."""
    rows, columns = raw.shape[:2]
    corner = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1)[:, :, None, :]
    centre = (sigmoid(raw[..., 0:2]) + corner) * stride
    sizes = np.asarray(anchors, dtype=np.float32)
    return centre, np.exp(np.clip(raw[..., 2:4], -LARGEST_RAW, LARGEST_RAW)) * sizes


def _likeliest(centre: Values, size: Values, scores: Values) -> Candidates:
    """Boxes (..., 2), (..., 2) and the scores (..., classes) of each, with its best class."""
    corners = np.concatenate((centre - size / 2, centre + size / 2), axis=-1)
    return Candidates(
        corners.reshape(-1, 4).astype(np.float32),
        scores.argmax(axis=-1).ravel(),
        scores.max(axis=-1).ravel(),
    )
