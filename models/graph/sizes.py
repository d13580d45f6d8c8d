"""Fixed sizes for the dimensions that a model leaves open.

Planning needs static shapes. An open batch size is 1. An open height and width come from the
model's sidecar, or are given with its name: `net.onnx@480x640` is `net.onnx` for maps of 480 rows
and 640 columns, a *size class* of its own with its own plan.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from onnx import ModelProto, TensorShapeProto, ValueInfoProto

from protos.errors import BadRequest

# The longest side of a model's input; more would be a mistake or an attack.
LARGEST_SIDE = 8192
# The order of a picture's dimensions: batch, channels, height, width.
ImageLayout = Literal["NCHW", "NHWC", "CHW", "HWC"]
_CHANNELS = (1, 3)
# What exporters call an open batch.
_BATCH = re.compile(r"n|none|b|bs|unk.*|.*batch.*|", re.IGNORECASE)
_NAMED = re.compile(r"(?P<model>.+)@(?P<height>\d{1,5})x(?P<width>\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Size:
    """Height and width of an input."""

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width}"


def split_name(text: str) -> tuple[str, Size | None]:
    """The model that `MODEL@HEIGHTxWIDTH` names, and the size; None if it has none.

    Raises:
        BadRequest: a size of 0 or beyond the largest.
    """
    found = _NAMED.fullmatch(text)
    if found is None:
        return text, None
    size = Size(int(found["height"]), int(found["width"]))
    if not (1 <= size.height <= LARGEST_SIDE and 1 <= size.width <= LARGEST_SIDE):
        raise BadRequest(
            cause=f"{text!r} asks for maps of {size}",
            cure=f"Height and width must be from 1 to {LARGEST_SIDE}",
        )
    return found["model"], size


def inputs_of(proto: ModelProto) -> list[ValueInfoProto]:
    """The inputs that requests supply: older files list their weights among the inputs."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    return [value for value in proto.graph.input if value.name not in stored]


def open_axes(value: ValueInfoProto) -> list[int]:
    """Dimensions that an input leaves open, but for that of a batch."""
    dims = value.type.tensor_type.shape.dim
    return [
        axis for axis, dim in enumerate(dims) if dim.dim_value < 1 and axis != _batch_axis(value)
    ]


def layout_of(shape: Sequence[int]) -> ImageLayout | None:
    """How a tensor of this shape holds one picture, grey or in colours; None if it cannot. Sides
    that are still open are 0. Where channels may be first or last, they are first; a tensor without
    a batch is only taken for a picture in colours.
    """
    if len(shape) == 4 and shape[0] == 1:
        if shape[1] in _CHANNELS:
            return "NCHW"
        return "NHWC" if shape[3] in _CHANNELS else None
    if len(shape) == 3:
        if shape[0] == 3:
            return "CHW"
        return "HWC" if shape[2] == 3 and shape[0] != 1 else None
    return None


def bind(inputs: Iterable[ValueInfoProto], size: Size | None = None) -> None:
    """Fixes every open dimension of a model's inputs, in place: a batch to 1, height and width of a
    picture (in any layout) to `size`. A symbol has one value everywhere.

    Raises:
        BadRequest: a dimension stays open, or none is open and another size is asked for.
    """
    known: dict[str, int] = {}
    used = size is None
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        if (batch := _batch_axis(value)) is not None and dims[batch].dim_value < 1:
            _fix(dims[batch], 1, known)
        for axis in open_axes(value):
            if dims[axis].dim_param in known:
                _fix(dims[axis], known[dims[axis].dim_param], known)
        left = open_axes(value)
        sides = _sides([dim.dim_value for dim in dims], left)
        if left and (size is None or not sides):
            declared = dims[left[0]].HasField("dim_value")
            size_now = f"size {dims[left[0]].dim_value}" if declared else "no fixed size"
            raise BadRequest(
                cause=f"input {value.name!r} has {size_now} along dimension {left[0]}",
                cure="Name a height and width: `imbrex models add FILE --size 480x640`, and with "
                "other commands the model as net.onnx@480x640"
                if sides
                else "Export the model with fixed sizes of 1 or more.",
            )
        if size is not None:
            for axis, side in zip(sides, (size.height, size.width), strict=False):
                if axis in left:
                    _fix(dims[axis], side, known)
            # Fixed at this size, with its channels first or last.
            sizes = [dim.dim_value for dim in dims]
            used = used or [size.height, size.width] in (sizes[-2:], sizes[-3:-1])
    if not used:
        raise BadRequest(
            cause=f"the model's height and width are fixed, and are not {size}",
            cure="Leave out the size (--size, or @HEIGHTxWIDTH after the name), or export it "
            "with an open height and width.",
        )


def _batch_axis(value: ValueInfoProto) -> int | None:
    """The first dimension, unless it is the height or the channels of a picture without a batch, or
    the list is said to have no elements.
    """
    dims = value.type.tensor_type.shape.dim
    if not dims or (len(dims) == 1 and dims[0].HasField("dim_value") and not dims[0].dim_value):
        return None
    is_open = [dim.dim_value < 1 for dim in dims]
    if is_open == [True, True, False] and dims[2].dim_value == 3:
        return 0 if _BATCH.fullmatch(dims[0].dim_param) else None
    return 0


def _sides(shape: list[int], left: list[int]) -> list[int]:
    """The axes of height and width of an input that leaves some of its axes open: one or both of
    them. Empty if that is not what is open.
    """
    if len(left) == 2:
        return left
    if len(left) != 1 or len(shape) != 4:
        return []
    # Of channels first or last, those that are fewer than any side.
    first = left[0] == 3 or (left[0] == 2 and shape[1] <= shape[3])
    return [2, 3] if first else [1, 2]


def _fix(dim: TensorShapeProto.Dimension, size: int, known: dict[str, int]) -> None:
    if dim.dim_param:
        known.setdefault(dim.dim_param, size)
    dim.dim_value = size
