"""The networks that imbrex knows by name, and how any network is brought into memory.

A model is a catalogue name or an `.onnx` file. Its sidecar, `NAME.json` beside `NAME.onnx`, says
how images become its input and how its output becomes an answer; a model without one takes and
gives tensors.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from models.graph import OPSETS
from models.sidecar import Sidecar, Task, sidecar_path
from models.sidecar import load as load_sidecar
from models.zoo.alexnet import alexnet
from models.zoo.builder import UNTRAINED, WEIGHTS_KEY
from models.zoo.inception import inceptionv3
from models.zoo.lenet import lenet5
from models.zoo.resnet import resnet50
from models.zoo.vgg import vgg16
from models.zoo.yolov2 import yolov2
from protos.errors import BadRequest, NotFound

# What protobuf can hold in one message, and so the largest network with all of its weights.
MAX_MODEL_BYTES = 2**31 - 1

_DIGITS = Path(__file__).parent / "digits" / "digits.onnx"


@dataclass(frozen=True, slots=True)
class Built:
    """A network made by code, anew at each load."""

    build: Callable[[], ModelProto]


@dataclass(frozen=True, slots=True)
class Shipped:
    """A file that is installed with imbrex."""

    path: Path


Source = Built | Shipped


@dataclass(frozen=True, slots=True)
class Entry:
    """One network of the catalogue. The untrained ones have no sidecar: they take and give
    tensors, whatever task their layers were designed for."""

    name: str
    description: str
    source: Source
    task: Task = "tensor"
    trained: bool = False


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A network in memory with all of its weights; `sidecar` is None where it takes tensors."""

    name: str
    proto: ModelProto = field(repr=False)
    sidecar: Sidecar | None
    trained: bool


def _untrained(name: str, description: str, build: Callable[[], ModelProto]) -> Entry:
    return Entry(name, f"{description} ({UNTRAINED})", Built(build))


_ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(
            "digits",
            "handwritten digits on a sheet, 416x416",
            Shipped(_DIGITS),
            task="detection",
            trained=True,
        ),
        _untrained("vgg16", "VGG-16, 224x224", partial(vgg16, 224, classifier=True)),
        _untrained("vgg16-256", "VGG-16, 256x256", partial(vgg16, 256, classifier=True)),
        _untrained(
            "vgg16-conv",
            "VGG-16's 13 convolutions and pools, 224x224",
            partial(vgg16, 224, classifier=False),
        ),
        _untrained(
            "vgg16-256-conv",
            "VGG-16's 13 convolutions and pools, 256x256",
            partial(vgg16, 256, classifier=False),
        ),
        _untrained("yolov2", "YOLOv2, 416x416", yolov2),
        _untrained("resnet50", "ResNet-50 v1.5, 224x224", resnet50),
        _untrained("inceptionv3", "Inception-v3, 299x299", inceptionv3),
        _untrained("alexnet", "AlexNet, 224x224", alexnet),
        _untrained("lenet5", "LeNet-5, 28x28", lenet5),
    )
}


def names() -> tuple[str, ...]:
    """Every name in the catalogue."""
    return tuple(_ENTRIES)


def entry(name: str) -> Entry:
    """The catalogue's entry for `name`.

    Raises:
        NotFound: no such name.
    """
    if name in _ENTRIES:
        return _ENTRIES[name]
    closest = difflib.get_close_matches(name, _ENTRIES, n=1)
    hint = f"Did you mean {closest[0]!r}? " if closest else ""
    raise NotFound(
        cause=f"there is no model {name!r}",
        cure=f"{hint}Known are {', '.join(_ENTRIES)}; or give the path of an .onnx file.",
    )


def load(name_or_path: str | Path) -> LoadedModel:
    """Builds or reads a network. A string is a catalogue name first, then a path.

    Raises:
        NotFound: no such name, or no such file.
        BadRequest: the file is not a usable ONNX model, or its sidecar is wrong.
    """
    if not _is_path(name_or_path):
        found = entry(str(name_or_path))
        match found.source:
            case Built(build):
                return LoadedModel(found.name, build(), sidecar=None, trained=found.trained)
            case Shipped(path):
                return _load_file(path)
    return _load_file(Path(name_or_path))


def _is_path(name_or_path: str | Path) -> bool:
    if isinstance(name_or_path, Path):
        return True
    if name_or_path in _ENTRIES:
        return False
    return name_or_path.lower().endswith(".onnx") or os.sep in name_or_path


def _load_file(path: Path) -> LoadedModel:
    proto = _parse(path)
    _require_onnx(path, proto)
    _load_external_data(path, proto)
    beside = sidecar_path(path)
    sidecar = load_sidecar(beside) if beside.is_file() else None
    trained = sidecar.trained if sidecar else _metadata(proto).get(WEIGHTS_KEY) != UNTRAINED
    return LoadedModel(path.stem, proto, sidecar, trained)


def _metadata(proto: ModelProto) -> dict[str, str]:
    return {item.key: item.value for item in proto.metadata_props}


def _parse(path: Path) -> ModelProto:
    if not path.exists():
        raise NotFound(cause=f"there is no file {path}", cure="Check the path of the model.")
    if not path.is_file():
        raise BadRequest(cause=f"{path} is not a file", cure="Give the path of an .onnx file.")
    size = path.stat().st_size
    if size > MAX_MODEL_BYTES:
        raise _too_large(path, size)
    try:
        return ModelProto.FromString(path.read_bytes())
    except DecodeError as error:
        raise _not_onnx(path) from error
    except OSError as error:
        raise BadRequest(
            cause=f"{path} cannot be read ({error.strerror})", cure="Check its permissions."
        ) from error


def _require_onnx(path: Path, proto: ModelProto) -> None:
    """Protobuf reads many things as a model without content, so some content is required."""
    opsets = [entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")]
    if not proto.graph.node or not proto.graph.output or not opsets:
        raise _not_onnx(path)
    if opsets[0] not in OPSETS:
        raise BadRequest(
            cause=f"{path} uses ONNX opset {opsets[0]}",
            cure=f"Convert it to opset {OPSETS.start} to {OPSETS.stop - 1}, for example with "
            "onnx.version_converter.",
        )


def _load_external_data(path: Path, proto: ModelProto) -> None:
    """Brings weights that lie in files of their own into the model.

    A model may come from anywhere: it must not name files outside its folder, nor blow up memory
    by naming one file many times.
    """
    external = [tensor for tensor in _tensors(proto) if uses_external_data(tensor)]
    total = proto.ByteSize() + sum(_external_bytes(path, tensor) for tensor in external)
    if total > MAX_MODEL_BYTES:
        raise _too_large(path, total)
    for tensor in external:
        try:
            load_external_data_for_tensor(tensor, str(path.parent))
        except Exception as error:  # onnx raises its own and C++ exceptions of several types
            raise _bad_external_data(path, tensor, str(error)) from error


def _external_bytes(path: Path, tensor: TensorProto) -> int:
    """Bytes that loading will read: its `length`, or its whole file."""
    attributes = {item.key: item.value for item in tensor.external_data}
    folder = path.parent.resolve()
    file = (folder / attributes.get("location", "")).resolve()
    if not file.is_relative_to(folder):
        raise _bad_external_data(path, tensor, "they are outside the model's folder")
    if not file.is_file():
        raise _bad_external_data(path, tensor, f"there is no file {file}")
    length = attributes.get("length", "")
    return int(length) if length.isdecimal() else file.stat().st_size


def _tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Every constant, also those of nested graphs, attributes and functions."""
    yield from _tensors_of(proto.graph)
    for function in proto.functions:
        yield from _tensors_of(function)


def _tensors_of(body: GraphProto | FunctionProto) -> Iterator[TensorProto]:
    if isinstance(body, GraphProto):
        yield from body.initializer
        for sparse in body.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in body.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for graph in (attribute.g, *attribute.graphs):
                yield from _tensors_of(graph)


def _not_onnx(path: Path) -> BadRequest:
    return BadRequest(
        cause=f"{path} is not a complete ONNX model", cure="Export or download it again."
    )


def _too_large(path: Path, size: int) -> BadRequest:
    return BadRequest(
        cause=f"{path} takes {size / 1e9:.2f} GB with its weights",
        cure=f"The largest that can be used is {MAX_MODEL_BYTES / 1e9:.2f} GB.",
    )


def _bad_external_data(path: Path, tensor: TensorProto, reason: str) -> BadRequest:
    return BadRequest(
        cause=f"the weights {tensor.name!r} of {path} cannot be read: {reason}",
        cure="Put the files that belong to the model beside it, or export it as one file.",
    )
