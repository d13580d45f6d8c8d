"""A model's picture of a picture: style, resolution, colour."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.heads import Repainted
from models.preprocess import Placement


@dataclass(frozen=True, slots=True)
class Repainting:
    """The new picture, RGB, of the part that the model saw of the sent one."""

    picture: Image.Image = field(compare=False)

    def as_json(self) -> dict[str, object]:
        """The prediction as the HTTP interface shows it: a PNG in base64."""
        file = BytesIO()
        self.picture.save(file, "PNG", compress_level=1)
        png = base64.b64encode(file.getvalue()).decode()
        return {"width": self.picture.width, "height": self.picture.height, "png": png}


def repainted(
    output: NDArray[np.float32], head: Repainted, placement: Placement, size: tuple[int, int]
) -> Repainting:
    """The picture of an output (1, 3 or 1, H, W) over a model input of `size` (height, width)."""
    rows, columns, _ = placement.on_map(output.shape[2], output.shape[3], size)
    values = output[0][:, rows, columns] * head.scale + head.offset
    pixels = np.clip(np.nan_to_num(np.rint(values)), 0, 255).astype(np.uint8)
    if len(pixels) == 1:
        pixels = np.repeat(pixels, 3, axis=0)
    return Repainting(Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))))
