"""YOLOv8's and YOLO11's exports that find more than boxes: masks, keypoints, rotated boxes.

Columns are those of `YoloBoxes`, centre x, y, width, height and a score for each class, then:
`yolov8-seg` the weights of a second output's prototypes, (1, P, H, W); `yolov8-pose` points of x, y
and (`visible`) their likelihood; `yolov8-obb` an angle in radians. The graph has decoded all of it,
to pixels of the model's input.

`end2end-seg`, `end2end-pose` and `end2end-obb` are what YOLO26 finds: a row for each finished box,
whose first six values are those of `end2end` (for `end2end-obb` with centre x, y, width and
height), then the same. An `nms_iou` of 1 keeps all of them.
"""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from models.tensors.arrays import require_no_nan
from models.tensors.boxes import Span
from models.tensors.selection import Selection, Selections
from models.vision.box_lists import FINISHED, finished
from models.vision.classes import Overlay
from models.vision.detection import Candidates, DetectedBox, Detector, likeliest
from models.vision.head import ANY, OutputShapes, OutputValues, PictureSize, Values, View
from models.vision.image_input import FARTHEST
from protos.daemon.documents import DOCUMENT, MOST_ITEMS, Flag, Integer, Share, Text

# Areas of lines, whose distributions have no other.
_LEAST = 1e-12
Count = Annotated[Integer, Field(ge=1, le=MOST_ITEMS)]


class _Columns(Detector):
    """A head that reads columns of boxes and more from the output `boxes`."""

    __slots__ = ()
    type: str
    boxes: str

    @property
    def is_finished(self) -> bool:
        """Whether they are rows of finished boxes."""
        return self.type.startswith("end2end")

    def extra(self) -> int:
        """The number of values after the scores."""
        raise NotImplementedError

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """The columns, or the rows."""
        if self.is_finished:
            return {self.boxes: (1, ANY, FINISHED + self.extra())}
        return {self.boxes: (1, 4 + classes + self.extra(), ANY)}

    def selections(self, shapes: OutputShapes, classes: int) -> Selections:
        """The likely boxes."""
        if self.is_finished:
            return {self.boxes: Selection(1, 2, Span(4, 5), self.min_score)}
        return {self.boxes: Selection(2, 1, Span(4, 4 + classes), self.min_score)}

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """The boxes, with their likeliest classes and what else is known of them."""
        if self.is_finished:
            return finished(outputs[self.boxes][0], classes)
        rows = outputs[self.boxes][0].T
        found = likeliest(rows[:, 0:2], rows[:, 2:4], rows[:, 4 : 4 + classes])
        return replace(found, more=rows[:, 4 + classes :])


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class YoloSegments(_Columns):
    """Boxes with a mask each: the sum of prototypes with so many `weights`, where it is positive,
    within the box.
    """

    type: Literal["yolov8-seg", "end2end-seg"]
    boxes: Text
    prototypes: Text
    weights: Count
    min_score: Share
    nms_iou: Share

    def extra(self) -> int:
        """A weight for each prototype."""
        return self.weights

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """The columns and the prototypes."""
        columns = _Columns.wanted(self, shapes, classes, size)
        return {**columns, self.prototypes: (1, self.weights, ANY, ANY)}

    def described(self, found: Candidates, outputs: OutputValues, view: View) -> list[DetectedBox]:
        """The boxes with their masks, at the resolution of the prototypes."""
        prototypes = outputs[self.prototypes][0]
        _, high, wide = prototypes.shape
        rows, columns, covers = view.placement.on_map(high, wide, view.size)
        shown = prototypes[:, rows, columns]
        sums = np.tensordot(found.more, shown, axes=1)
        boxes = view.placement.to_image(found.boxes)
        inside = _inside(boxes, covers, (shown.shape[1], shown.shape[2]))
        require_no_nan(sums[inside], "the masks of its boxes")
        masks = (sums > 0) & inside
        return [
            replace(detection, mask=Overlay(covers, masks[k]))
            for k, detection in self.kept(found, view, boxes)
        ]


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class YoloPose(_Columns):
    """Boxes with keypoints: x, y and, if they have `visible`, a likelihood each; 1 otherwise."""

    type: Literal["yolov8-pose", "end2end-pose"]
    boxes: Text
    points: Count
    visible: Flag
    min_score: Share
    nms_iou: Share

    def extra(self) -> int:
        """Values of all keypoints."""
        return self.points * (3 if self.visible else 2)

    def described(self, found: Candidates, outputs: OutputValues, view: View) -> list[DetectedBox]:
        """The boxes with their keypoints, in pixels of the sent picture."""
        each_point = found.more.reshape(len(found.scores), self.points, -1)
        places = view.placement.points_to_image(each_point[..., :2])
        sure = np.ones(places.shape[:2], np.float32)
        if self.visible:
            sure = np.clip(each_point[..., 2], 0, 1)
        return [
            replace(
                detection,
                keypoints=tuple(
                    (float(x), float(y), float(score))
                    for (x, y), score in zip(places[k], sure[k], strict=True)
                ),
            )
            for k, detection in self.kept(found, view)
        ]


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class YoloRotated(_Columns):
    """Boxes that are rotated by an angle."""

    type: Literal["yolov8-obb", "end2end-obb"]
    boxes: Text
    min_score: Share
    nms_iou: Share

    def extra(self) -> int:
        """The angle."""
        return 1

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """Their bounds; `more` holds centre, size and angle."""
        found = _Columns.candidates(self, outputs, classes, size)
        places = found.boxes if self.is_finished else outputs[self.boxes][0].T[:, :4]
        turned = np.concatenate((places, found.more), axis=1)
        corners = corners_of(turned)
        bounds = np.concatenate((corners.min(axis=1), corners.max(axis=1)), axis=1)
        bounds[~np.isfinite(turned).all(axis=1)] = np.nan
        return replace(found, boxes=bounds.astype(np.float32), more=turned)

    def overlap(self, found: Candidates) -> Values:
        """That of the rotated boxes, as of two normal distributions [ProbIoU, section 3]."""
        return likeness(found.more)

    def described(self, found: Candidates, outputs: OutputValues, view: View) -> list[DetectedBox]:
        """The bounds with the four corners, in pixels of the sent picture."""
        corners = view.placement.points_to_image(corners_of(found.more))
        return [
            replace(detection, corners=tuple((float(x), float(y)) for x, y in corners[k]))
            for k, detection in self.kept(found, view)
        ]


def corners_of(turned: Values) -> Values:
    """The four corners (N, 4, 2) of boxes (N, 5) of centre, size and angle."""
    turned = np.clip(np.nan_to_num(turned), -FARTHEST, FARTHEST)
    cos, sin = np.cos(turned[:, 4:5]), np.sin(turned[:, 4:5])
    along = turned[:, 2:3] / 2 * np.concatenate((cos, sin), axis=1)
    across = turned[:, 3:4] / 2 * np.concatenate((-sin, cos), axis=1)
    signs = ((1, 1), (1, -1), (-1, -1), (-1, 1))
    corners: Values = np.stack([turned[:, :2] + a * along + b * across for a, b in signs], axis=1)
    return corners


def likeness(turned: Values) -> Values:
    """1 minus the Hellinger distance of every pair (N, N) of rotated boxes (N, 5), each taken for a
    uniform distribution's normal one: variances width^2 / 12 and height^2 / 12, rotated.
    """
    sizes = np.clip(np.nan_to_num(turned), -FARTHEST, FARTHEST).astype(np.float64)
    x, y, w, h, angle = sizes.T
    long, short = w**2 / 12, h**2 / 12
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = long * cos**2 + short * sin**2, long * sin**2 + short * cos**2
    c = (long - short) * cos * sin
    a2, b2, c2 = (one[:, None] + one[None, :] for one in (a, b, c))
    dx, dy = x[:, None] - x[None, :], y[:, None] - y[None, :]
    determinant = np.maximum(a2 * b2 - c2**2, _LEAST)
    apart = (a2 * dy**2 + b2 * dx**2 - 2 * c2 * dx * dy) / determinant / 4
    own = np.maximum(a * b - c**2, 0)
    root = 4 * np.sqrt(own[:, None] * own[None, :])
    shape = 0.5 * np.log(determinant / np.maximum(root, _LEAST))
    distance = np.clip(apart + shape, 0, 100)
    alike: Values = (1 - np.sqrt(1 - np.exp(-distance))).astype(np.float32)
    return alike


def _inside(boxes: Values, covers: tuple[float, ...], shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Which cells (N, rows, columns) of a map that `covers` a part of the picture have their middle
    in each box.
    """
    rows, columns = shape
    left, top, right, bottom = covers
    x = left + (np.arange(columns) + 0.5) * (right - left) / columns
    y = top + (np.arange(rows) + 0.5) * (bottom - top) / rows
    wide = (boxes[:, 0:1] <= x) & (x < boxes[:, 2:3])
    tall = (boxes[:, 1:2] <= y) & (y < boxes[:, 3:4])
    inside: NDArray[np.bool_] = tall[:, :, None] & wide[:, None, :]
    return inside
