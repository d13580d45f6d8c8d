"""Sheets of handwritten digits with their true boxes, composed from a seed.

`sheet(part, seed)` is a pure function: the same seed gives the same pixels and the same truth.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from models.vision.quality import GroundTruth
from training.digits.ink import Bank, Ink, InkPart, bank, random_pen, write
from training.digits.paper import Colours, PaperPixels, blank, random_colours, random_ink

LONG_SIDE = 416
SMALLEST_PX, LARGEST_PX = 28.0, 110.0  # height of a digit on a sheet whose long side is 416
MOST_DIGITS = 14
GAP_PX = 2
PLACEMENT_TRIES = 12
# Streams of seeds never shared between training and evaluation.
STREAM = {InkPart.TRAIN: 1, InkPart.HELD_OUT: 2}


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit that is really on a sheet."""

    label: int
    box: tuple[float, float, float, float]
    """x_min, y_min, x_max, y_max in pixels of the sheet."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Pixels (H, W, 3) uint8 RGB and the digits on them."""

    pixels: NDArray[np.uint8]
    digits: tuple[Digit, ...]


@dataclass(frozen=True, slots=True)
class Format:
    """Size of a sheet in pixels and the bounds of how many digits it carries."""

    width: int = LONG_SIDE
    height: int = LONG_SIDE
    fewest: int = 1
    most: int = MOST_DIGITS

    @property
    def unit(self) -> float:
        """Pixels per pixel of a sheet whose long side is `LONG_SIDE`."""
        return max(self.width, self.height) / LONG_SIDE


# The evaluation's: a square, and two shapes that have to be scaled and letterboxed.
SHEETS = 200
FORMATS = (Format(416, 416), Format(640, 480), Format(480, 640))


def held_out_sheets(count: int = SHEETS) -> Iterator[Sheet]:
    """The first `count` held-out sheets, with alternating formats."""
    for seed in range(count):
        yield sheet(InkPart.HELD_OUT, seed, FORMATS[seed % len(FORMATS)])


def truth_of(made: Sheet) -> list[GroundTruth]:
    """The digits of a sheet in the form that the quality measure takes."""
    return [GroundTruth(str(digit.label), digit.box) for digit in made.digits]


def sheet(part: InkPart, seed: int, form: Format | None = None) -> Sheet:
    """The sheet numbered `seed` of `part`, written with that part's digit images only."""
    rng = np.random.default_rng([STREAM[part], seed])
    form = form or Format()
    colours = random_colours(rng)
    pixels = blank(rng, form.width, form.height, colours)
    digits = _write_digits(rng, pixels, form, colours, bank(part))
    return Sheet(_photographed(rng, pixels), digits)


def _write_digits(
    rng: np.random.Generator, pixels: PaperPixels, form: Format, colours: Colours, scans: Bank
) -> tuple[Digit, ...]:
    one_size = float(rng.uniform(SMALLEST_PX, LARGEST_PX)) if rng.random() < 0.4 else None
    one_ink = rng.random() < 0.7
    digits: list[Digit] = []
    for _ in range(int(rng.integers(form.fewest, form.most + 1))):
        # Small digits are as frequent as large ones on a logarithmic scale.
        height = one_size or float(np.exp(rng.uniform(np.log(SMALLEST_PX), np.log(LARGEST_PX))))
        pick = int(rng.integers(len(scans)))
        ink = write(scans.scans[pick], random_pen(rng, height * form.unit))
        corner = _free_corner(rng, ink, form, digits) if ink else None
        if ink is None or corner is None:
            continue
        x, y = corner
        colour = colours.ink if one_ink else random_ink(rng, colours.paper)
        patch = pixels[y : y + ink.height, x : x + ink.width]
        patch += ink.coverage[:, :, None] * float(rng.uniform(0.8, 1.0)) * (colour - patch)
        box = (float(x), float(y), float(x + ink.width), float(y + ink.height))
        digits.append(Digit(scans.labels[pick], box))
    return tuple(digits)


def _free_corner(
    rng: np.random.Generator, ink: Ink, form: Format, digits: list[Digit]
) -> tuple[int, int] | None:
    """A place where the digit touches no other one; often right beside the last one."""
    for attempt in range(PLACEMENT_TRIES):
        if attempt == 0 and digits and rng.random() < 0.4:
            last = digits[-1].box
            x, y = int(last[2] + rng.uniform(GAP_PX, 12)), int(last[1] + rng.uniform(-6, 6))
        else:
            x = int(rng.integers(0, max(1, form.width - ink.width)))
            y = int(rng.integers(0, max(1, form.height - ink.height)))
        inside = 0 <= x <= form.width - ink.width and 0 <= y <= form.height - ink.height
        if inside and not any(_touches(x, y, ink, digit.box) for digit in digits):
            return x, y
    return None


def _touches(x: int, y: int, ink: Ink, box: tuple[float, float, float, float]) -> bool:
    return (
        x < box[2] + GAP_PX
        and box[0] < x + ink.width + GAP_PX
        and y < box[3] + GAP_PX
        and box[1] < y + ink.height + GAP_PX
    )


def _photographed(rng: np.random.Generator, pixels: PaperPixels) -> NDArray[np.uint8]:
    """What a camera makes of the sheet: a little blur, grain and JPEG."""
    height, width, _ = pixels.shape
    grain = rng.normal(0, float(rng.uniform(0, 6)), (height, width, 1)).astype(np.float32)
    picture = Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8))
    if rng.random() < 0.35:
        picture = picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.3, 1.0))))
    if rng.random() < 0.3:
        jpeg = BytesIO()
        picture.save(jpeg, "JPEG", quality=int(rng.integers(50, 95)))
        picture = Image.open(jpeg)
    return np.array(picture.convert("RGB"))
