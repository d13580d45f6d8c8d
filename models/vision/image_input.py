"""How a picture becomes a model's input, as the sidecar's key `input` says."""

from __future__ import annotations

from typing import Annotated, Literal

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
    def channels(self) -> int:
        """1 for grey pictures, else 3."""
        return len(self.mean)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's."""
        extents = {"N": 1, "C": self.channels, "H": self.size[0], "W": self.size[1]}
        return tuple(extents[axis] for axis in self.layout)

    @property
    def pixels(self) -> Pixels:
        """The input as the pixels that it is made of."""
        last = self.layout.endswith("C")
        return Pixels(self.scale, self.mean, self.std, channels_last=last)
