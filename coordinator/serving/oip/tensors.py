"""Tensors as the protocol names and encodes them.

Raw bytes are row-major, little-endian and unpadded; an element of BYTES is its length as u32
followed by its bytes.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from models.graph.shapes import TensorInfo
from models.tensors.arrays import require_finite, require_no_nan
from protos.errors import BadRequest

BYTES = "BYTES"
_NUMPY = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
_NAMES = {np.dtype(kind): name for name, kind in _NUMPY.items()}
# For each kind of element type, the numpy kinds that JSON values may be converted to.
_FITTING = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}


def datatype_of(info: TensorInfo) -> str:
    """The protocol's name for a tensor's element type."""
    return _NAMES.get(info.dtype, BYTES)


def require(name: str, datatype: str, shape: Sequence[object], info: TensorInfo) -> None:
    """Refuses a tensor whose announced type or shape differs from the model's input.

    Raises:
        BadRequest: with both.
    """
    wanted = datatype_of(info)
    if datatype != wanted or tuple(shape) != info.shape or any(type(n) is bool for n in shape):
        raise BadRequest(
            cause=f"the input {name!r} is {datatype} {_shown(shape)}",
            cure=f"The model takes {wanted} {list(info.shape)}",
        )


def from_bytes(name: str, data: bytes | memoryview, info: TensorInfo) -> np.ndarray:
    """A tensor from its raw bytes, without a copy.

    Raises:
        BadRequest: the length does not fit its type and shape.
    """
    if len(data) != info.nbytes:
        raise BadRequest(
            cause=f"the input {name!r} has {len(data)} bytes of data",
            cure=f"{datatype_of(info)} {list(info.shape)} takes {info.nbytes}",
        )
    return np.frombuffer(data, info.dtype.newbyteorder("<")).reshape(info.shape)


def from_values(name: str, values: object, info: TensorInfo) -> np.ndarray:
    """A tensor from numbers: flat in row-major order, or nested like its shape.

    Raises:
        BadRequest: not numbers of its type, or the wrong count.
    """
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise _bad_data(name, info, "is ragged or out of range") from error
    if array.shape not in (info.shape, (math.prod(info.shape),)):
        raise _bad_data(name, info, f"has the shape {_shown(array.shape)}")
    if array.size and array.dtype.kind not in _FITTING.get(info.dtype.kind, ""):
        raise _bad_data(name, info, "has values of the wrong type")
    if info.dtype.kind in "iu" and array.size:
        limits = np.iinfo(info.dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise _bad_data(name, info, "has values out of range")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array.reshape(info.shape), info.dtype)


def to_bytes(array: np.ndarray) -> bytes:
    """A tensor's raw bytes; objects are bytes strings."""
    if array.dtype.kind == "O":
        return b"".join(struct.pack("<I", len(value)) + value for value in array.ravel())
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def to_values(name: str, array: np.ndarray) -> list[Any]:
    """A tensor's elements for JSON, flat.

    Raises:
        NotFiniteAnswer: JSON cannot represent some of them.
    """
    if array.dtype.kind == "O":
        return [value.decode("utf-8", "replace") for value in array.ravel()]
    require_finite(array, f"{name!r}, which JSON cannot represent", "ask for it as binary data")
    values: list[Any] = array.ravel().tolist()
    return values


def name_of(array: np.ndarray) -> str:
    """The protocol's name for an array's element type."""
    return _NAMES.get(array.dtype, BYTES)


def classes(array: np.ndarray, count: int, labels: Sequence[str]) -> np.ndarray:
    """The classification extension: the `count` largest elements, largest first, as
    `value:index` or `value:index:label` (objects, shape (count,)).

    Raises:
        NotFiniteAnswer: one is NaN, or the largest is infinite.
    """
    flat = array.ravel().astype(np.float64)
    require_no_nan(flat, "the scores of its classes")
    best = np.argsort(-flat, kind="stable")[:count]
    require_finite(flat[best[:1]], "the scores of its classes")
    told = np.empty(len(best), object)
    for row, index in enumerate(best):
        label = f":{labels[index]}" if index < len(labels) else ""
        told[row] = f"{float(flat[index]):f}:{index}{label}".encode()
    return told


def _bad_data(name: str, info: TensorInfo, problem: str) -> BadRequest:
    return BadRequest(
        cause=f"the data of the input {name!r} {problem}",
        cure=f"Send {math.prod(info.shape)} values of {datatype_of(info)}, "
        f"flat or nested as {list(info.shape)}",
    )


def _shown(shape: Sequence[object]) -> str:
    """A shape from a client for an error message, with bounded length."""
    return str(list(shape))[:80]
