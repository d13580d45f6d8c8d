"""Conversion of plain values from and to messages: data types and boxes.

`protos` knows nothing of `models`, so a box is anything that yields spans with `start` and
`stop` on the way out, and a tuple of (start, stop) on the way in: `Box.of(*ranges(message))`.
"""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from protos import imbrex_pb2 as pb
from protos.errors import PeerViolation

BoxRanges = tuple[tuple[int, int], ...]

# onnx.TensorProto.DataType -> little-endian dtype: the types of tensors on the wire.
DTYPES: dict[int, np.dtype] = {
    1: np.dtype("<f4"),
    2: np.dtype("u1"),
    3: np.dtype("i1"),
    4: np.dtype("<u2"),
    5: np.dtype("<i2"),
    6: np.dtype("<i4"),
    7: np.dtype("<i8"),
    9: np.dtype("?"),
    10: np.dtype("<f2"),
    11: np.dtype("<f8"),
    12: np.dtype("<u4"),
    13: np.dtype("<u8"),
}
_DATA_TYPES = {dtype: code for code, dtype in DTYPES.items()}

# ONNX has no operator on more dimensions; numpy stops at 64.
MAX_DIMS = 16


class SpanLike(Protocol):
    """A half-open range; `models.tensors.boxes.Span` is one."""

    @property
    def start(self) -> int:
        """First index."""
        ...

    @property
    def stop(self) -> int:
        """One past the last index."""
        ...


def dtype_of(data_type: int) -> np.dtype:
    """The dtype of an ONNX data type.

    Raises:
        PeerViolation: a type that the wire does not carry.
    """
    try:
        return DTYPES[data_type]
    except KeyError:
        raise PeerViolation(
            cause=f"a peer sent a tensor of data type {data_type}, which the wire does not carry"
        ) from None


def data_type_of(dtype: np.dtype) -> int:
    """The ONNX data type of a dtype; KeyError for one that the wire does not carry."""
    return _DATA_TYPES[dtype.newbyteorder("<")]


def box_message(spans: Iterable[SpanLike]) -> pb.Box:
    """The message for a box."""
    pairs = [(span.start, span.stop) for span in spans]
    return pb.Box(start=[start for start, _ in pairs], stop=[stop for _, stop in pairs])


def ranges(box: pb.Box) -> BoxRanges:
    """The (start, stop) of every dimension.

    Raises:
        PeerViolation: unequal lengths, an inverted range, too many dimensions.
    """
    if len(box.start) != len(box.stop) or len(box.start) > MAX_DIMS:
        raise PeerViolation(
            cause=f"a peer sent a box of {len(box.start)} starts and {len(box.stop)} stops"
        )
    pairs = tuple(zip(box.start, box.stop, strict=True))
    if any(stop < start for start, stop in pairs):
        raise PeerViolation(cause=f"a peer sent an inverted box: {pairs}")
    return pairs
