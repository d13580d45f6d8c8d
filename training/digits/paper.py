"""Paper and blackboards without digits: colour, texture, ruling, smudges and scribbles."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

PaperPixels = NDArray[np.float32]
"""(H, W, 3), 0..255."""

MIN_CONTRAST = 75.0  # grey levels between ink and paper
DARK_SHARE = 0.2  # blackboards with light ink
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Colours:
    """The paper's colour and one ink that is readable on it, each (3,) in 0..255."""

    paper: NDArray[np.float32]
    ink: NDArray[np.float32]


def random_colours(rng: np.random.Generator) -> Colours:
    """A paper and an ink at least `MIN_CONTRAST` grey levels apart."""
    low, high = (15, 75) if rng.random() < DARK_SHARE else (165, 250)
    paper = _tinted(rng, float(rng.uniform(low, high)))
    return Colours(paper, random_ink(rng, paper))


def random_ink(rng: np.random.Generator, paper: NDArray[np.float32]) -> NDArray[np.float32]:
    """Any colour that is readable on `paper`."""
    grey = float(paper @ LUMA)
    while True:
        ink = rng.uniform(0, 255, 3).astype(np.float32)
        if rng.random() < 0.5:  # most pens are nearly grey
            ink = _tinted(rng, float(ink.mean()))
        if abs(float(ink @ LUMA) - grey) >= MIN_CONTRAST:
            return ink


def _tinted(rng: np.random.Generator, grey: float) -> NDArray[np.float32]:
    return np.clip(grey + rng.normal(0, 10, 3), 0, 255).astype(np.float32)


def blank(rng: np.random.Generator, width: int, height: int, colours: Colours) -> PaperPixels:
    """A textured sheet with ruling, smudges, specks and scribbles."""
    relief = np.zeros((height, width), dtype=np.float32)
    for cells, amplitude in ((3, 18.0), (12, 7.0), (70, 6.0)):
        relief += _noise(rng, width, height, cells, float(rng.uniform(0, amplitude)))
    sheet = colours.paper[None, None, :] + relief[:, :, None]
    for clutter in (_ruling, _smudges, _scribbles, _specks):
        mask = Image.new("L", (width, height))
        if clutter(rng, ImageDraw.Draw(mask), width, height):
            soft = 0.5 if clutter is not _smudges else float(rng.uniform(4, 14))
            colour = np.clip(colours.paper + rng.normal(0, 90, 3), 0, 255).astype(np.float32)
            cover(sheet, mask.filter(ImageFilter.GaussianBlur(soft)), colour)
    return sheet.astype(np.float32)


def cover(sheet: PaperPixels, mask: Image.Image, colour: NDArray[np.float32]) -> None:
    """Paint `colour` on `sheet` in place, as opaque as `mask` (255 is opaque)."""
    alpha = np.asarray(mask, dtype=np.float32)[:, :, None] / 255.0
    sheet += alpha * (colour - sheet)


def _noise(
    rng: np.random.Generator, width: int, height: int, cells: int, amplitude: float
) -> NDArray[np.float32]:
    """Smooth noise (H, W) with about `cells` bumps along each side."""
    coarse = Image.fromarray(rng.normal(0, amplitude, (cells, cells)).astype(np.float32))
    return np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)


def _ruling(rng: np.random.Generator, pen: ImageDraw.ImageDraw, width: int, height: int) -> bool:
    kind = rng.choice(["none", "lines", "grid"], p=[0.45, 0.3, 0.25])
    if kind == "none":
        return False
    unit = max(width, height) / 416
    gap = float(rng.uniform(16, 60)) * unit
    tilt = float(rng.normal(0, 0.015))
    shade = int(rng.uniform(70, 255))
    thick = max(1, round(float(rng.uniform(0.6, 2.2)) * unit))
    for y in np.arange(float(rng.uniform(0, gap)) - tilt * width, height + gap, gap):
        pen.line([(0, float(y)), (width, float(y) + tilt * width)], fill=shade, width=thick)
    if kind == "grid":
        for x in np.arange(float(rng.uniform(0, gap)) - tilt * height, width + gap, gap):
            pen.line([(float(x), 0), (float(x) - tilt * height, height)], fill=shade, width=thick)
    return True


def _smudges(rng: np.random.Generator, pen: ImageDraw.ImageDraw, width: int, height: int) -> bool:
    count = int(rng.integers(0, 5))
    for _ in range(count):
        x, y = rng.uniform(0, width), rng.uniform(0, height)
        w, h = rng.uniform(8, 70, 2)
        box = (float(x - w), float(y - h), float(x + w), float(y + h))
        pen.ellipse(box, fill=int(rng.uniform(30, 170)))
    return count > 0


def _scribbles(rng: np.random.Generator, pen: ImageDraw.ImageDraw, width: int, height: int) -> bool:
    """Long strokes: a short straight one would be a valid digit 1."""
    count = int(rng.integers(0, 4))
    for _ in range(count):
        angle = float(rng.uniform(0, np.pi))
        reach = float(rng.uniform(0.35, 1.0)) * max(width, height)
        along = np.linspace(-0.5, 0.5, 12) * reach
        bend = float(rng.normal(0, 0.08)) * reach * np.sin(np.linspace(0, np.pi, 12))
        x = float(rng.uniform(0, width)) + along * np.cos(angle) - bend * np.sin(angle)
        y = float(rng.uniform(0, height)) + along * np.sin(angle) + bend * np.cos(angle)
        points = [(float(px), float(py)) for px, py in zip(x, y, strict=True)]
        pen.line(points, fill=int(rng.uniform(80, 255)), width=int(rng.integers(1, 5)))
    return count > 0


def _specks(rng: np.random.Generator, pen: ImageDraw.ImageDraw, width: int, height: int) -> bool:
    count = int(rng.integers(0, 25))
    for _ in range(count):
        x, y, r = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(0.7, 4)
        pen.ellipse((x - r, y - r, x + r, y + r), fill=int(rng.uniform(80, 255)))
    return count > 0
