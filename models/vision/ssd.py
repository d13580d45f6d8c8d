"""Single-shot detectors (SSD): boxes and scores."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from models.tensors.boxes import Span
from models.tensors.selection import NO_SELECTION, Selection, Selections
from models.vision.detection import Candidates, Detector, grown
from models.vision.head import ANY, OutputShapes, OutputValues, PictureSize, Values, softmax
from protos.daemon.documents import DOCUMENT, MOST_ITEMS, Flag, Number, Positive, Share, Text

Prior = tuple[Number, Number, Number, Number]


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class Ssd(Detector):
    """Two outputs: `boxes` (1, N, 4) and `scores` (1, N, 1 + classes), class 0 the background.

    `logits`: scores are to be normalised. Without `priors`, boxes are corners in shares of the
    model's input, in the order `corners`. With them (centre x, y, width, height in shares), boxes
    are offsets, to be scaled by `variances`.
    """

    type: Literal["ssd"]
    boxes: Text
    scores: Text
    logits: Flag
    corners: Literal["xyxy", "yxyx"]
    priors: Annotated[tuple[Prior, ...], Field(max_length=MOST_ITEMS)]
    variances: tuple[Positive, Positive]
    min_score: Share
    nms_iou: Share

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """Boxes and scores."""
        count = len(self.priors) or ANY
        return {self.boxes: (1, count, 4), self.scores: (1, count, 1 + classes)}

    def selections(self, shapes: OutputShapes, classes: int) -> Selections:
        """The scores of likely boxes. Zeros among logits would be scores, and what is read of the
        boxes depends on another output: these are read whole.
        """
        if self.logits:
            return NO_SELECTION
        return {self.scores: Selection(1, 2, Span(1, 1 + classes), self.min_score)}

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """Every box except the background.

        Offsets d of a prior (x, y, w, h) with variances v:
        x' = x + d_x v_0 w, w' = w exp(d_w v_1)                          [SSD, section 2.2]
        """
        boxes, scores = outputs[self.boxes][0], outputs[self.scores][0]
        chances = (softmax(scores) if self.logits else scores)[:, 1:]
        shares = (
            self._from_priors(boxes)
            if self.priors
            else (boxes if self.corners == "xyxy" else boxes[:, [1, 0, 3, 2]])
        )
        height, width = size
        return Candidates(
            (shares * np.array([width, height] * 2)).astype(np.float32),
            chances.argmax(axis=-1),
            chances.max(axis=-1),
        )

    def _from_priors(self, offsets: Values) -> Values:
        priors = np.asarray(self.priors, dtype=np.float32)
        near, far = self.variances
        centre = priors[:, :2] + offsets[:, :2] * near * priors[:, 2:]
        size = priors[:, 2:] * grown(offsets[:, 2:] * far)
        return np.concatenate((centre - size / 2, centre + size / 2), axis=-1)
