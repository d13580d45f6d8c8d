"""How a picture becomes a model's input, as the sidecar's key `input` says."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from models.documents import DOCUMENT, Integer, Number, Positive, Text, wrong
from models.sizes import LARGEST_SIDE
from models.wire import Pixels

Resize = Literal["letterbox", "stretch", "centre-crop"]
Side = Annotated[Integer, Field(ge=1, le=LARGEST_SIDE)]


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class ImageInput:
    """How a picture becomes the input `name` (1, 3, *size): (pixel * scale - mean) / std.

    `size` is (height, width). A letterbox is padded with the grey `pad_value`; a centre crop
    first brings the shorter side to `resize_shorter` pixels.
    """

    name: Text
    size: tuple[Side, Side]
    resize: Resize
    color: Literal["RGB", "BGR"]
    scale: Positive
    mean: tuple[Number, Number, Number]
    std: tuple[Positive, Positive, Positive]
    pad_value: Annotated[Integer, Field(ge=0, le=255)]
    resize_shorter: Side | None = Field(default=None, validate_default=True)

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
    def pixels(self) -> Pixels:
        """The input as the pixels that it is made of."""
        return Pixels(self.scale, self.mean, self.std)
