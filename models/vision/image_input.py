"""How a picture becomes a model's input, as the sidecar's key `input` says; its placement there,
and the way back to its own pixels.
"""

from dataclasses import dataclass as plain
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from models.graph.sizes import LARGEST_SIDE, ImageLayout
from models.tensors.wire import Pixels
from protos.daemon.documents import DOCUMENT, Integer, Number, Positive, Text, wrong

Resize = Literal["letterbox", "stretch", "centre-crop"]
Color = Literal["RGB", "BGR", "GREY"]
Side = Annotated[Integer, Field(ge=1, le=LARGEST_SIDE)]


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class ImageInput:
    """How a picture becomes the input `name`: (pixel * scale - mean) / std, of one value each for
    every channel.

    `size` is (height, width). A letterbox is padded with the grey `pad_value`; a centre crop
    first brings the shorter side to `resize_shorter` pixels. `layout` is the order of the tensor's
    dimensions: (1, 3, H, W) for NCHW and colours, (H, W, 1) for HWC and grey.
    """

    name: Text
    size: tuple[Side, Side]
    resize: Resize
    color: Color
    scale: Positive
    mean: tuple[Number, ...]
    std: tuple[Positive, ...]
    pad_value: Annotated[Integer, Field(ge=0, le=255)]
    resize_shorter: Side | None = Field(default=None, validate_default=True)
    layout: ImageLayout = "NCHW"

    @field_validator("mean", "std")
    @classmethod
    def _for_each_channel(cls, given: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        channels = 1 if info.data.get("color") == "GREY" else 3
        if len(given) != channels:
            raise wrong(f"Write a list of {channels}, one for each channel")
        return given

    @field_validator("resize_shorter")
    @classmethod
    def _of_a_centre_crop(cls, given: int | None, info: ValidationInfo) -> int | None:
        """Only a centre crop has one, and it is never smaller than the crop."""
        resize, longest = info.data.get("resize"), max(info.data.get("size", (1,)))
        if resize == "centre-crop" and (given is None or given < longest):
            raise wrong(f"Write a whole number from {longest} to {LARGEST_SIDE}")
        if resize != "centre-crop" and given is not None:
            cure = f"Remove it: only centre-crop reads it, and resize is {resize!r}"
            raise wrong(cure, "is not allowed here")
        return given

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's."""
        extents = {"N": 1, "C": len(self.mean), "H": self.size[0], "W": self.size[1]}
        return tuple(extents[axis] for axis in self.layout)

    @property
    def pixels(self) -> Pixels:
        """The input as the pixels that it is made of."""
        last = self.layout.endswith("C")
        return Pixels(self.scale, self.mean, self.std, channels_last=last)


# Of a point, in pixels of the model's input.
FARTHEST = 1e6

PixelBoxes = NDArray[np.float32]
"""(N, 4): x_min, y_min, x_max, y_max in pixels."""


@plain(frozen=True, slots=True)
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
