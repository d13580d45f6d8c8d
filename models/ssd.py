"""Boxes from the two outputs of a single-shot detector (SSD)."""

from __future__ import annotations

import numpy as np

from models.detection import LARGEST_RAW, Candidates, Values, softmax
from models.heads import Ssd


def decode(boxes: Values, scores: Values, head: Ssd, size: tuple[int, int]) -> Candidates:
    """Boxes (1, N, 4) and scores (1, N, 1 + classes) of a model input of `size` (height, width).

    Offsets d of a prior (x, y, w, h) with variances v:
    x' = x + d_x v_0 w, w' = w exp(d_w v_1)                          [SSD, section 2.2]
    """
    chances = softmax(scores[0]) if head.logits else scores[0]
    chances = chances[:, 1:]
    shares = _from_priors(boxes[0], head) if head.priors else _corners(boxes[0], head)
    height, width = size
    return Candidates(
        (shares * np.array([width, height] * 2)).astype(np.float32),
        chances.argmax(axis=-1),
        chances.max(axis=-1),
    )


def _corners(boxes: Values, head: Ssd) -> Values:
    return boxes if head.corners == "xyxy" else boxes[:, [1, 0, 3, 2]]


def _from_priors(offsets: Values, head: Ssd) -> Values:
    priors = np.asarray(head.priors, dtype=np.float32)
    near, far = head.variances
    centre = priors[:, :2] + offsets[:, :2] * near * priors[:, 2:]
    raw = np.clip(offsets[:, 2:] * far, -LARGEST_RAW, LARGEST_RAW)
    size = priors[:, 2:] * np.exp(raw)
    return np.concatenate((centre - size / 2, centre + size / 2), axis=-1)
