"""The placement of a picture in a model's input, and the way back to its own pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Of a point, in pixels of the model's input.
FARTHEST = 1e6

PixelBoxes = NDArray[np.float32]
"""(N, 4): x_min, y_min, x_max, y_max in pixels."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a picture of (width, height) lies in the model's input.

    x_model = x * scale_x + left, y_model = y * scale_y + top; a centre crop has negative offsets.
    """

    width: int
    height: int
    scale_x: float
    scale_y: float
    left: int
    top: int

    def to_image(self, boxes: PixelBoxes) -> PixelBoxes:
        """Boxes in the model's pixels as boxes in the picture's, clipped to the picture."""
        offset = np.array([self.left, self.top] * 2, dtype=np.float32)
        scale = np.array([self.scale_x, self.scale_y] * 2, dtype=np.float32)
        limit = np.array([self.width, self.height] * 2, dtype=np.float32)
        mapped: PixelBoxes = np.clip((boxes - offset) / scale, 0.0, limit)
        return mapped

    def points_to_image(self, points: NDArray[np.float32]) -> NDArray[np.float32]:
        """Points (..., 2) in the model's pixels as points in the picture's, not clipped to it;
        undefined ones become 0, and infinite ones far away.
        """
        offset = np.array([self.left, self.top], dtype=np.float32)
        scale = np.array([self.scale_x, self.scale_y], dtype=np.float32)
        defined = np.clip(np.nan_to_num(points), -FARTHEST, FARTHEST)
        mapped: NDArray[np.float32] = (defined - offset) / scale
        return mapped

    def seen(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The part of the picture behind a model input of (width, height) pixels."""
        whole = np.array([[0, 0, width, height]], dtype=np.float32)
        x_min, y_min, x_max, y_max = (float(edge) for edge in self.to_image(whole)[0])
        return x_min, y_min, x_max, y_max

    def on_map(
        self, rows: int, columns: int, size: tuple[int, int]
    ) -> tuple[slice, slice, tuple[float, float, float, float]]:
        """Where the picture lies on a map (rows, columns) over a model input of `size` (height,
        width): rows and columns, at least one of each, and the part of the picture that they show.
        """
        height, width = size
        tall = _shown(self.top, self.height * self.scale_y, height, rows)
        wide = _shown(self.left, self.width * self.scale_x, width, columns)
        corners = np.array(
            [[wide.start / columns, tall.start / rows, wide.stop / columns, tall.stop / rows]],
            dtype=np.float32,
        )
        x_min, y_min, x_max, y_max = (
            float(edge)
            for edge in self.to_image(corners * np.array([width, height] * 2, np.float32))[0]
        )
        return tall, wide, (x_min, y_min, x_max, y_max)


def _shown(start: float, length: float, side: int, cells: int) -> slice:
    """The range of the `count` cells of `side` pixels that `length` pixels from `start` on
    cover.
    """
    first = min(max(round(start / side * cells), 0), cells - 1)
    last = min(max(round((start + length) / side * cells), first + 1), cells)
    return slice(first, last)
