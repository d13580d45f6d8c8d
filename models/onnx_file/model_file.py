"""Reading an `.onnx` file, with bounds on its size and content.

Microsoft's Custom Vision and scikit-learn's converters end a network with a map from each class's
name to its score (ZipMap), and with the name of the best one (LabelEncoder). Neither is a tensor of
numbers. The scores are an output in place of the map; the names become metadata, as Ultralytics
writes them, from which labels are read; the best one is left out, as scores and names say it."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx
import onnx.inliner
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, defs, helper

from models.graph.graph import OPSETS
from models.onnx_file.external_data import FileExtent, load_external_data, read_extents, too_large
from models.onnx_file.stored import StoredModel
from models.onnx_file.wire_scan import BufferedFile, Field, TooMuch, merge, require_small
from models.tensors.memory import megabytes
from protos.errors import BadRequest, NotFound

# protobuf's limit for one message, and so the largest network with all of its weights.
MAX_MODEL_BYTES = 2**31 - 1
# The deepest CNNs in use have some thousands; planning time grows with the square.
MAX_NODES = 10_000
# Of what imbrex adds to a model that has no operators of ONNX's own domain.
_ADDED_OPSET = 17
_ML = "ai.onnx.ml"
# Where names of classes are, in the metadata of a model.
NAMES = "names"

_Key = tuple[str, str]

# Exporters write each module as a function, and modules are nested.
_DEEPEST = 100

# A constant in a function is copied for each call.
_MOST_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class _Size:
    """The size of inlined calls: nodes, and their bytes in the file's encoding."""

    nodes: int
    size: int


class _Written:
    """The size of calls; each function is measured once."""

    def __init__(self, functions: dict[_Key, onnx.FunctionProto]) -> None:
        self._functions = functions
        self._sizes: dict[_Key, _Size] = {}
        self._within: list[_Key] = []

    def of_all(self, nodes: Iterable[NodeProto]) -> _Size:
        """The size of several nodes."""
        found = [self._of_call(node) for node in nodes]
        return _Size(sum(part.nodes for part in found), sum(part.size for part in found))

    def _of_call(self, node: NodeProto) -> _Size:
        """The size of one node, with its function if it calls one."""
        key = (node.domain, node.op_type)
        function = self._functions.get(key)
        if function is None:
            inner = [
                self.of_all(graph.node)
                for attribute in node.attribute
                for graph in (attribute.g, *attribute.graphs)
            ]
            size = sum(part.size for part in inner) + (node.ByteSize() if self._within else 0)
            return _Size(1 + sum(part.nodes for part in inner), size)
        if key in self._within or len(self._within) == _DEEPEST:
            raise BadRequest(
                cause=f"the model's function {key[1]!r} calls itself, or is nested too deeply",
                cure="Export it without local functions.",
            )
        if key not in self._sizes:
            self._within.append(key)
            self._sizes[key] = self.of_all(function.node)
            self._within.pop()
        return self._sizes[key]


def file_at(path: Path) -> Path:
    """The model at a path: the file, or the one of its name in a folder, as Triton keeps a model
    with external data.
    """
    inside = path / path.name
    return inside if os.path.isfile(inside) else path


def read_model(path: Path) -> StoredModel:
    """The model in the file `path`.

    Raises:
        NotFound: no such file.
        BadRequest: not ONNX, too large, of another opset, or weights that cannot be read, or local
            functions that cannot be inlined.
    """
    model, inside = _parse(path)
    _require_onnx(path, model)
    if not _is_text(model):
        raise _not_onnx(path)
    with_scores(model)
    most_bytes = MAX_MODEL_BYTES - sum(entry.size for entry in inside.values())
    extents = inside | load_external_data(path, model, most_bytes)
    return StoredModel(
        without_functions(model, MAX_NODES),
        partial(read_extents, path, extents),
        tuple(extent.size for extent in extents.values()),
    )


def _parse(path: Path) -> tuple[ModelProto, dict[str, FileExtent]]:
    """The model, and the locations of its large initialisers in the file."""
    try:
        if not path.exists():
            raise NotFound(
                cause=f"there is no file {path.absolute()}",
                cure="Put it there, or name an .onnx file that exists.",
            )
        if not path.is_file():
            there = sorted(path.glob("*.onnx")) if path.is_dir() else []
            known = ", for example " + str(there[0]) if there else ""
            raise BadRequest(
                cause=f"{path} is not a file", cure=f"Give the path of an .onnx file{known}."
            )
        size = path.stat().st_size
        if size > MAX_MODEL_BYTES:
            raise too_large(path, size, MAX_MODEL_BYTES)
        with path.open("rb") as file:
            data = BufferedFile(file, size)
            require_small(data)
            return _without_large(path, data)
    except DecodeError as error:
        raise _not_onnx(path) from error
    except TooMuch as error:
        raise BadRequest(
            cause=f"{path} has {error}, too many for planning",
            cure="Simplify the model first, and save its weights as raw data.",
        ) from error
    except OSError as error:
        raise BadRequest(
            cause=f"{path} cannot be read ({error.strerror})", cure="Check its permissions."
        ) from error


def _without_large(path: Path, data: BufferedFile) -> tuple[ModelProto, dict[str, FileExtent]]:
    model = ModelProto()
    extents: dict[str, FileExtent] = {}

    def graph(value: Field) -> None:
        merge(model.graph, data, value, GraphProto.INITIALIZER_FIELD_NUMBER, initialiser)

    def initialiser(value: Field) -> None:
        tensor, raw = model.graph.initializer.add(), list[Field]()
        merge(tensor, data, value, TensorProto.RAW_DATA_FIELD_NUMBER, raw.append)
        for values in raw[-1:]:  # as in protobuf, the last one counts
            extent = FileExtent.of(tensor, path, values.start, values.size)
            if extent.is_large and tensor.name not in extents:
                extents[tensor.name] = extent
            else:
                tensor.raw_data = data.read(values.start, values.end)

    merge(model, data, data.whole, ModelProto.GRAPH_FIELD_NUMBER, graph)
    return model, extents


def _is_text(message: Message) -> bool:
    """Whether every name in it is UTF-8; protobuf returns other names as bytes."""
    for field, value in message.ListFields():
        several = (value,) if isinstance(value, str | bytes | Message) else value
        if field.type == FieldDescriptor.TYPE_STRING:
            if not all(isinstance(value, str) for value in several):
                return False
        elif field.type == FieldDescriptor.TYPE_MESSAGE and not all(map(_is_text, several)):
            return False
    return True


def _require_onnx(path: Path, model: ModelProto) -> None:
    """Protobuf parses many other files as an empty model, so some content is required."""
    opsets = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not model.graph.node or not model.graph.output or not model.opset_import:
        raise _not_onnx(path)
    if not opsets:
        domains = {node.domain for node in model.graph.node}
        # Functions may have nodes of ONNX's own domain.
        if not model.functions and domains.isdisjoint(("", "ai.onnx")):
            model.opset_import.append(helper.make_opsetid("", _ADDED_OPSET))
    elif opsets[0] < OPSETS.start:
        _raise_opset(path, model)
    elif opsets[0] not in OPSETS:
        raise _wrong_opset(f"{path} uses ONNX opset {opsets[0]}")
    count = _nodes_in(model.graph) + sum(len(function.node) for function in model.functions)
    if count > MAX_NODES:
        raise BadRequest(
            cause=f"{path} has {count} nodes",
            cure=f"At most {MAX_NODES} nodes can be planned: simplify the model first.",
        )


def _raise_opset(path: Path, model: ModelProto) -> None:
    """Makes an older model one of the first opset, if that defines its operators in the same way.
    onnxruntime has no kernels of the older definitions.
    """
    for entry in model.opset_import:
        if entry.domain not in ("", "ai.onnx"):
            continue
        for node in model.graph.node:
            if node.domain in ("", "ai.onnx") and _defined(node, entry.version) != _defined(
                node, OPSETS.start
            ):
                raise _wrong_opset(
                    f"{path} uses {node.op_type} as opset {entry.version} defines it, and "
                    "onnxruntime does not"
                )
        entry.version = OPSETS.start


def _defined(node: NodeProto, opset: int) -> int:
    """The opset in which an operator got its definition; 0 if there is none."""
    try:
        return int(defs.get_schema(node.op_type, opset, "").since_version)
    except defs.SchemaError:
        return 0


def _wrong_opset(cause: str) -> BadRequest:
    return BadRequest(
        cause=cause,
        cure=f"Convert it to opset {OPSETS.start} to {OPSETS.stop - 1}, for example with "
        "onnx.version_converter.",
    )


def _nodes_in(graph: GraphProto) -> int:
    """The number of nodes, including nested graphs; counting stops at the limit."""
    if len(graph.node) > MAX_NODES:
        return len(graph.node)
    nested = (
        inner
        for node in graph.node
        for attribute in node.attribute
        for inner in (attribute.g, *attribute.graphs)
    )
    return len(graph.node) + sum(_nodes_in(inner) for inner in nested)


def _not_onnx(path: Path) -> BadRequest:
    return BadRequest(
        cause=f"{path} is not a complete ONNX model", cure="Export or download it again."
    )


def with_scores(model: ModelProto) -> None:
    """Replaces maps from names to scores by scores, in place, and leaves out names of the best.

    Raises:
        BadRequest: an output is no tensor of numbers, and none of these.
    """
    maker = {name: node for node in model.graph.node for name in node.output}
    kept: list[ValueInfoProto] = []
    for value in model.graph.output:
        node = maker.get(value.name)
        if node is None or not _is_of(node, "ZipMap"):
            kept.append(value)
            continue
        if not any(entry.key == NAMES for entry in model.metadata_props):
            model.metadata_props.add(key=NAMES, value=str(dict(enumerate(_names(node)))))
        scores = helper.make_node("Identity", node.input, node.output, node.name)
        node.CopyFrom(scores)
        kept.append(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, None))
    numbers = [
        value
        for value in kept
        if value.type.tensor_type.elem_type != TensorProto.STRING
        or value.name not in maker
        or not _is_of(maker[value.name], "LabelEncoder")
    ]
    for value in numbers or kept:
        _require_numbers(value)
    if len(numbers) < len(model.graph.output) or kept != [*model.graph.output]:
        del model.graph.output[:]
        model.graph.output.extend(numbers)


def _is_of(node: NodeProto, op: str) -> bool:
    return node.domain == _ML and node.op_type == op


def _names(node: NodeProto) -> list[str]:
    """Of the classes of a ZipMap, by its attributes."""
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    texts: list[bytes] = given.get("classlabels_strings", [])
    numbers: list[int] = given.get("classlabels_int64s", [])
    return [text.decode(errors="replace") for text in texts] or [str(number) for number in numbers]


def _require_numbers(value: ValueInfoProto) -> None:
    kind = value.type.WhichOneof("value")
    is_text = kind == "tensor_type" and value.type.tensor_type.elem_type == TensorProto.STRING
    if kind in (None, "tensor_type") and not is_text:
        return
    what = "text" if is_text else str(kind).removesuffix("_type").replace("_", " ")
    raise BadRequest(
        cause=f"the output {value.name!r} is no tensor of numbers, but {what}",
        cure="Export the model without it, or with the scores that it is made of.",
    )


def without_functions(model: ModelProto, most: int) -> ModelProto:
    """The model with its local functions inlined; the model itself if it has none.

    Raises:
        BadRequest: a function calls itself, or there would be more than `most` nodes.
    """
    if not model.functions:
        return model
    count = _Written({(function.domain, function.name): function for function in model.functions})
    total = count.of_all(model.graph.node)
    if total.nodes > most:
        raise BadRequest(
            cause=f"the model has {total.nodes} nodes with its functions inlined",
            cure=f"At most {most} nodes can be planned: simplify the model first.",
        )
    if total.size > _MOST_BYTES:
        raise BadRequest(
            cause=f"the model's functions take {megabytes(total.size)} when inlined",
            cure=f"The most is {megabytes(_MOST_BYTES)}: make their constants inputs.",
        )
    try:
        inlined = onnx.inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:  # onnx raises bare C++ exceptions of several types
        raise BadRequest(
            cause=f"the model's functions cannot be inlined ({str(error)[:300]})",
            cure="Export it without local functions.",
        ) from error
    if inlined.functions:
        raise BadRequest(
            cause=f"the model's function {inlined.functions[0].name!r} cannot be inlined",
            cure="Export it without local functions, or with those of its own opset.",
        )
    return inlined
