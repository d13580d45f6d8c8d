"""Single handwritten digits as ink: scikit-learn's 8x8 scans, enlarged smoothly and deformed.

The digits are the UCI set "Optical Recognition of Handwritten Digits" as shipped by scikit-learn.
They are split by image, so that no scan seen in training ever appears on a held-out sheet.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import cos, radians, sin

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

SPLIT_SEED = 20240
HELD_OUT_SHARE = 0.2
BORDER = 2  # blank source pixels around a scan, so that rotation never cuts ink
ENLARGE = 8  # pixels per source pixel in the stored scan
SCAN = 8 * ENLARGE
INK_IS = 0.35  # coverage from which a pixel belongs to the digit's box
MIN_BOX_PX = 12.0


class InkPart(Enum):
    """Which digit images a sheet may use."""

    TRAIN = "train"
    HELD_OUT = "held-out"


@dataclass(frozen=True, slots=True)
class Bank:
    """The digit images of one part of the split."""

    scans: tuple[Image.Image, ...]
    labels: tuple[int, ...]
    sources: tuple[int, ...]
    """Index of each scan in scikit-learn's data set."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Pen:
    """How one digit is written."""

    height_px: float
    aspect: float
    angle_deg: float
    shear: float
    threshold: float
    """Scan intensity that becomes half-covered ink: low is a broad pen, high a fine one."""
    sharpness: float


@dataclass(frozen=True, slots=True)
class Ink:
    """One digit's coverage (h, w) in [0, 1], cropped to the box of its ink."""

    coverage: NDArray[np.float32]

    @property
    def width(self) -> int:
        """Pixels across."""
        return int(self.coverage.shape[1])

    @property
    def height(self) -> int:
        """Pixels down."""
        return int(self.coverage.shape[0])


@cache
def bank(part: InkPart) -> Bank:
    """The scans of `part`; the two parts share no image and together are the whole data set."""
    data = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(data.target))
    cut = round(len(order) * HELD_OUT_SHARE)
    chosen = np.sort(order[:cut] if part is InkPart.HELD_OUT else order[cut:])
    return Bank(
        scans=tuple(_enlarge(data.images[i]) for i in chosen),
        labels=tuple(int(data.target[i]) for i in chosen),
        sources=tuple(int(i) for i in chosen),
    )


def _enlarge(scan: NDArray[np.float64]) -> Image.Image:
    """The 8x8 scan (0..16) with a blank border, as a smooth grey image with ink = 255."""
    padded = np.pad(scan * (255.0 / 16.0), BORDER).astype(np.uint8)
    side = padded.shape[0] * ENLARGE
    return Image.fromarray(padded).resize((side, side), Image.Resampling.BICUBIC)


def random_pen(rng: np.random.Generator, height_px: float) -> Pen:
    """A handwriting of the given height, otherwise random."""
    return Pen(
        height_px=height_px,
        aspect=float(rng.uniform(0.8, 1.2)),
        angle_deg=float(rng.uniform(-15, 15)),
        shear=float(rng.uniform(-0.15, 0.15)),
        threshold=float(rng.uniform(0.33, 0.55)),
        sharpness=float(rng.uniform(1.8, 5.0)),
    )


def write(scan: Image.Image, pen: Pen) -> Ink | None:
    """The digit as `pen` writes it, or None if too little ink is left to be readable."""
    scale = SCAN / pen.height_px
    side = int(np.ceil(pen.height_px * 1.7))
    c, s = cos(radians(pen.angle_deg)), sin(radians(pen.angle_deg))
    across, down = scale / pen.aspect, scale
    a, b = across * c, across * (s + pen.shear * c)
    d, e = -down * s, down * c
    centre, middle = scan.width / 2, side / 2
    matrix = (a, b, centre - (a + b) * middle, d, e, centre - (d + e) * middle)
    smooth = scan.transform((side, side), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
    grey = np.asarray(smooth, dtype=np.float32) / 255.0
    coverage = np.clip((grey - pen.threshold) * pen.sharpness + 0.5, 0.0, 1.0)
    # A blank scan pixel is not ink at all, however soft the pen.
    coverage = np.where(coverage < INK_IS / 2, 0.0, coverage).astype(np.float32)
    rows = np.flatnonzero((coverage > INK_IS).any(axis=1))
    columns = np.flatnonzero((coverage > INK_IS).any(axis=0))
    if rows.size < MIN_BOX_PX:
        return None
    return Ink(coverage[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
