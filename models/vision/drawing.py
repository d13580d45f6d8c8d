"""The annotated picture: boxes and labels that stay readable on any background."""

from collections.abc import Sequence
from colorsys import hsv_to_rgb
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageDraw

from models.vision.classes import ClassProbability, ClassSegment, Overlay
from models.vision.detection import DetectedBox
from models.vision.fonts import font_for
from models.vision.predictions import VisionPrediction
from models.vision.preprocess import full_size
from models.vision.repainted import Repainting

Colour = tuple[int, int, int]

GOLDEN_TURN = 0.618034  # successive classes get hues far apart
BLACK: Colour = (0, 0, 0)
SMALLEST_TEXT_PX, LARGEST_TEXT_PX = 11, 40
TEXT_SHARE = 0.032  # of the shorter side
LEAST_KEYPOINT = 0.5  # likelihood of one that is drawn
SHADE = 128  # of 255: how opaque a segment's tint is


def annotated(image: Image.Image, predictions: Sequence[VisionPrediction]) -> Image.Image:
    """A copy of the picture with every prediction drawn on it, the best one on top.

    Classes are listed in the upper left corner; plain tensors are not drawn. A picture that the
    model made is itself the answer.
    """
    for prediction in predictions:
        if isinstance(prediction, Repainting):
            return prediction.picture
    if (full := full_size(image)) != image.size:
        x, y = (part / whole for part, whole in zip(image.size, full, strict=True))
        predictions = [_scaled(prediction, x, y) for prediction in predictions]
    picture = image.convert("RGB")
    if picture is image:
        picture = image.copy()
    for item in predictions:
        if isinstance(item, ClassSegment):
            _shade(picture, item.overlay, colour_of(item.index))
        elif isinstance(item, DetectedBox) and item.mask is not None:
            _shade(picture, item.mask, colour_of(item.index))
    canvas = _Canvas.on(picture)
    found = [item for item in reversed(predictions) if isinstance(item, DetectedBox)]
    for detection in found:
        canvas.outline(detection)
    for detection in found:
        x_min, y_min, _, _ = detection.box
        canvas.tag(detection, x_min, y_min - canvas.line_px)
    classes = [item for item in predictions if isinstance(item, ClassProbability | ClassSegment)]
    for row, named in enumerate(classes):
        canvas.tag(named, 0, row * canvas.line_px)
    return picture


def _scaled(item: VisionPrediction, x: float, y: float) -> VisionPrediction:
    """A prediction in the pixels of a smaller picture."""

    def corners(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        return box[0] * x, box[1] * y, box[2] * x, box[3] * y

    match item:
        case ClassSegment():
            overlay = replace(item.overlay, covers=corners(item.overlay.covers))
            return replace(item, box=corners(item.box), overlay=overlay)
        case DetectedBox():
            mask = item.mask and replace(item.mask, covers=corners(item.mask.covers))
            points = item.keypoints and tuple((a * x, b * y, c) for a, b, c in item.keypoints)
            rotated = item.corners and tuple((a * x, b * y) for a, b in item.corners)
            return replace(
                item, box=corners(item.box), mask=mask, keypoints=points, corners=rotated
            )
        case _:
            return item


def colour_of(index: int) -> Colour:
    """A bright colour, always the same for a class; black text is readable on it."""
    red, green, blue = hsv_to_rgb(index * GOLDEN_TURN % 1.0, 0.65, 1.0)
    return round(red * 255), round(green * 255), round(blue * 255)


def _shade(picture: Image.Image, overlay: Overlay, colour: Colour) -> None:
    """Tints the pixels of a mask."""
    left, top, right, bottom = (round(edge) for edge in overlay.covers)
    size = (max(1, right - left), max(1, bottom - top))
    mask = Image.fromarray(overlay.mask.astype(np.uint8) * SHADE)
    picture.paste(colour, (left, top), mask.resize(size))


@dataclass(frozen=True, slots=True)
class _Canvas:
    """A picture being drawn on, with one size of text and of line for all of it."""

    pen: ImageDraw.ImageDraw
    size: tuple[int, int]
    text_px: int

    @classmethod
    def on(cls, picture: Image.Image) -> "_Canvas":
        wanted = int(min(picture.size) * TEXT_SHARE)
        text_px = min(max(wanted, SMALLEST_TEXT_PX), LARGEST_TEXT_PX)
        return cls(ImageDraw.Draw(picture), picture.size, text_px)

    @property
    def line_px(self) -> int:
        """Height of a tag."""
        return self.text_px + 4

    def outline(self, detection: DetectedBox) -> None:
        """A coloured line between two black ones: one of them contrasts with any background."""
        left, top, right, bottom = (round(edge) for edge in detection.box)
        line = max(1, self.text_px // 8)
        for inset, colour, width in (
            (-line, BLACK, 3 * line),
            (0, colour_of(detection.index), line),
        ):
            if detection.corners is not None:
                self.pen.polygon(detection.corners, outline=colour, width=width)
                continue
            corners = (left + inset, top + inset, right - inset, bottom - inset)
            if corners[0] <= corners[2] and corners[1] <= corners[3]:
                self.pen.rectangle(corners, outline=colour, width=width)
        for x, y, likelihood in detection.keypoints or ():
            if likelihood >= LEAST_KEYPOINT:
                dot = (x - 2 * line, y - 2 * line, x + 2 * line, y + 2 * line)
                self.pen.ellipse(dot, fill=colour_of(detection.index), outline=BLACK)

    def tag(self, item: DetectedBox | ClassProbability | ClassSegment, x: float, y: float) -> None:
        """Black text on a plate of the class's colour, moved inside the picture. A label that no
        font has is the number of its class.
        """
        number = item.share if isinstance(item, ClassSegment) else item.score
        label = " ".join(item.label.split())
        font = font_for(label, self.text_px)
        if font is None:
            label, font = f"#{item.index}", font_for("#", self.text_px)
        text = f"{label}: {number:.0%}"
        width = self.pen.textlength(text, font=font) + 6
        left = max(0.0, min(x, self.size[0] - width))
        top = max(0.0, min(y, self.size[1] - self.line_px))
        plate = (left, top, left + width, top + self.line_px)
        self.pen.rectangle(plate, fill=colour_of(item.index), outline=BLACK)
        middle = (left + 3, top + self.line_px / 2)
        self.pen.text(middle, text, fill=BLACK, font=font, anchor="lm")
