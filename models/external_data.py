"""Weights that lie in files of their own beside an ONNX model.

A model may come from anywhere: it must not name files outside its folder, nor blow up memory by
naming one file many times, so every file is checked before a byte of any is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, helper
from onnx.external_data_helper import uses_external_data

from protos.errors import BadRequest


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a tensor's bytes lie."""

    tensor: TensorProto
    file: Path
    offset: int
    size: int


def load_external_data(path: Path, model: ModelProto, most_bytes: int) -> None:
    """Brings the weights into `model`, the content of the file `path`.

    Raises:
        BadRequest: a file outside the folder of `path`, missing or too short, a tensor of
            unusable type or shape, or more than `most_bytes` in all.
    """
    parts = [_part(path, each) for each in _tensors(model) if uses_external_data(each)]
    total = model.ByteSize() + sum(part.size for part in parts)
    if total > most_bytes:
        raise too_large(path, total, most_bytes)
    for part in parts:
        try:
            with part.file.open("rb") as file:
                file.seek(part.offset)
                data = file.read(part.size)
        except OSError as error:
            raise _unusable(path, part.tensor, str(error.strerror)) from error
        if len(data) != part.size:
            raise _unusable(path, part.tensor, f"{part.file} is too short")
        part.tensor.raw_data = data
        part.tensor.ClearField("external_data")
        part.tensor.ClearField("data_location")


def too_large(path: Path, size: int, most_bytes: int) -> BadRequest:
    """The error about a model that takes `size` bytes."""
    return BadRequest(
        cause=f"{path} takes {size / 1e9:.2f} GB with its weights",
        cure=f"The largest that can be used is {most_bytes / 1e9:.2f} GB.",
    )


def _part(path: Path, tensor: TensorProto) -> _Part:
    attributes = {item.key: item.value for item in tensor.external_data}
    folder = path.parent.resolve()
    try:
        file = (folder / attributes.get("location", "")).resolve()
        is_file = file.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, a ring of links
        raise _unusable(path, tensor, f"they have no usable location ({error})") from error
    if not file.is_relative_to(folder):
        raise _unusable(path, tensor, "they are outside the model's folder")
    if not is_file:
        raise _unusable(path, tensor, f"there is no file {file}")
    size = _nbytes(path, tensor)
    stated = attributes.get("length", str(size))
    if stated != str(size):
        raise _unusable(path, tensor, f"they take {size} bytes, but {stated} are stated")
    offset = attributes.get("offset", "0")
    # int() reads any number of digits in quadratic time; no file has an offset of 20.
    if not (offset.isascii() and offset.isdecimal() and len(offset) < 20):
        raise _unusable(path, tensor, f"{offset[:40]!r} is no offset")
    if int(offset) + size > file.stat().st_size:
        raise _unusable(path, tensor, f"{file} is too short")
    return _Part(tensor, file, int(offset), size)


def _nbytes(path: Path, tensor: TensorProto) -> int:
    try:
        itemsize = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except KeyError:
        raise _unusable(path, tensor, f"{tensor.data_type} is no element type") from None
    if tensor.data_type == TensorProto.STRING or any(dim < 0 for dim in tensor.dims):
        raise _unusable(path, tensor, "they are no numbers of a known shape")
    return int(itemsize) * math.prod(tensor.dims)


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every constant, also those of nested graphs, attributes and functions."""
    yield from _tensors_of(model.graph)
    for function in model.functions:
        yield from _tensors_of(function)


def _tensors_of(body: GraphProto | FunctionProto) -> Iterator[TensorProto]:
    if isinstance(body, GraphProto):
        yield from body.initializer
        for sparse in body.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in body.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            for sparse in attribute.sparse_tensors:
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from _tensors_of(graph)


def _unusable(path: Path, tensor: TensorProto, reason: str) -> BadRequest:
    return BadRequest(
        cause=f"the weights {tensor.name!r} of {path} cannot be read: {reason}",
        cure="Put the files that belong to the model beside it, or export it as one file.",
    )
