"""Weights in files: in the ONNX file itself, or in others beside it.

A model may come from an untrusted source: it must not name files outside its folder, nor exhaust
memory by naming one file many times, so every file is checked before any is read.
"""

import errno
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, helper
from onnx.external_data_helper import uses_external_data

from models.onnx_file.stored import Allocate
from protos.errors import BadRequest

# Smaller ones are read with the model: shapes, scales and biases determine its structure.
LARGE_BYTES = 4096
# Types whose bytes in a file are the same as in numpy's memory.
_PLAIN = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE}
    | {TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64}
    | {TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64}
)


@dataclass(frozen=True, slots=True)
class FileExtent:
    """The location of a tensor's values; `changed_ns` is the file's modification time."""

    file: Path
    offset: int
    size: int
    changed_ns: int
    data_type: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: TensorProto, file: Path, offset: int, size: int) -> Self:
        """The extent of a tensor whose values are `size` bytes of the file."""
        changed_ns = file.stat().st_mtime_ns
        return cls(file, offset, size, changed_ns, tensor.data_type, tuple(tensor.dims))

    @property
    def is_large(self) -> bool:
        """Whether the tensor is large, and can be read into an array without conversion."""
        if (
            self.size < LARGE_BYTES
            or self.data_type not in _PLAIN
            or min(self.shape, default=0) < 0
        ):
            return False
        return math.prod(self.shape) * self.dtype.itemsize == self.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return helper.tensor_dtype_to_np_dtype(self.data_type)

    def read_into(self, array: np.ndarray) -> None:
        """Reads the values into an array of that many bytes.

        Raises:
            OSError: the file cannot be read, or was changed.
        """
        with self.file.open("rb") as file:
            if os.fstat(file.fileno()).st_mtime_ns != self.changed_ns:
                raise OSError(errno.ESTALE, "it has changed since the model was loaded")
            file.seek(self.offset)
            if file.readinto(array.reshape(-1).view(np.uint8).data) != self.size:
                raise OSError(errno.ESTALE, "it is too short")


def read_extents(
    path: Path, extents: Mapping[str, FileExtent], room: Allocate
) -> dict[str, np.ndarray]:
    """The values of initialisers of the model `path`.

    Raises:
        BadRequest: a file has changed since, or cannot be read.
    """
    arrays = {}
    for name, extent in extents.items():
        array = arrays[name] = room(extent.dtype, extent.shape)
        _read(path, name, extent, array)
        array.flags.writeable = False
    return arrays


def load_external_data(path: Path, model: ModelProto, most_bytes: int) -> dict[str, FileExtent]:
    """Loads the weights of `model`, the content of the file `path`, except large initialisers,
    whose extents it returns by name.

    Raises:
        BadRequest: a file outside the folder of `path`, missing or too short, a tensor of
            unusable type or shape, or more than `most_bytes` in all.
    """
    own = [tensor for tensor in model.graph.initializer if uses_external_data(tensor)]
    # Of attributes, nested graphs and functions.
    holders: list[GraphProto | FunctionProto] = [model.graph, *model.functions]
    beside = (tensor for holder in holders for tensor in _tensors_beside(holder))
    inner = [tensor for tensor in beside if uses_external_data(tensor)]
    extents = [(tensor, _extent(path, tensor)) for tensor in own + inner]
    total = model.ByteSize() + sum(extent.size for _, extent in extents)
    if total > most_bytes:
        raise too_large(path, total, most_bytes)
    large: dict[str, FileExtent] = {}
    for index, (tensor, extent) in enumerate(extents):
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        if index < len(own) and extent.is_large and tensor.name not in large:
            large[tensor.name] = extent
            continue
        data = np.empty(extent.size, np.uint8)
        _read(path, tensor.name, extent, data)
        tensor.raw_data = data.tobytes()
    return large


def _read(path: Path, name: str, extent: FileExtent, array: np.ndarray) -> None:
    try:
        extent.read_into(array)
    except OSError as error:
        raise _unusable(path, name, f"{extent.file}: {error.strerror}") from error


def too_large(path: Path, size: int, most_bytes: int) -> BadRequest:
    """The error about a model that takes `size` bytes."""
    return BadRequest(
        cause=f"{path} takes {size / 1e9:.2f} GB with its weights",
        cure=f"The largest that can be used is {most_bytes / 1e9:.2f} GB.",
    )


def _extent(path: Path, tensor: TensorProto) -> FileExtent:
    attributes = {item.key: item.value for item in tensor.external_data}
    folder = path.parent.resolve()
    try:
        file = (folder / attributes.get("location", "")).resolve()
        is_file = file.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, a ring of links
        raise _unusable(path, tensor.name, f"they have no usable location ({error})") from error
    # A download cache links the model and its weights into one folder.
    homes = (folder, path.resolve().parent)
    if not any(map(file.is_relative_to, homes)):
        raise _unusable(path, tensor.name, "they are outside the model's folder")
    if not is_file:
        raise _unusable(path, tensor.name, f"there is no file {file}")
    try:
        itemsize = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except KeyError:
        raise _unusable(path, tensor.name, f"{tensor.data_type} is not an element type") from None
    if tensor.data_type == TensorProto.STRING or any(dim < 0 for dim in tensor.dims):
        raise _unusable(path, tensor.name, "they are not numbers of a known shape")
    size = int(itemsize) * math.prod(tensor.dims)
    stated = attributes.get("length", str(size))
    if stated != str(size):
        raise _unusable(path, tensor.name, f"they take {size} bytes, but {stated} are stated")
    offset = attributes.get("offset", "0")
    # int() reads any number of digits in quadratic time; no file has an offset of 20.
    if not (offset.isascii() and offset.isdecimal() and len(offset) < 20):
        raise _unusable(path, tensor.name, f"{offset[:40]!r} is not an offset")
    if int(offset) + size > file.stat().st_size:
        raise _unusable(path, tensor.name, f"{file} is too short")
    return FileExtent.of(tensor, file, int(offset), size)


def _tensors_beside(body: GraphProto | FunctionProto) -> Iterator[TensorProto]:
    if isinstance(body, GraphProto):
        for sparse in body.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in body.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            for sparse in attribute.sparse_tensors:
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from graph.initializer
                yield from _tensors_beside(graph)


def _unusable(path: Path, name: str, reason: str) -> BadRequest:
    return BadRequest(
        cause=f"the weights {name!r} of {path} cannot be read: {reason}",
        cure="Put the files that belong to the model beside it, or export it as one file.",
    )
