"""Arriving programs: verified, refused if they refer to files, and completed with weights."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper

from models.cut.program import Program, WeightRef
from models.graph.graph import OPSETS
from models.tensors.memory import KEPT_FROM_BYTES
from protos import imbrex_pb2 as pb
from protos.errors import BadRequest
from protos.wire.convert import DTYPES

# Domains of onnxruntime's own operators. Others would need an extra library.
_DOMAINS = (
    *("", "ai.onnx", "ai.onnx.ml"),
    *("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"),
)

# Operators that compute with their second operand as it is.
_PRODUCTS = ("Gemm", "MatMul", "QGemm")

# onnxruntime reads external data from files of at least this size; smaller weights are embedded.
EMBED_BELOW_BYTES = 1024


def program_of(message: pb.Program) -> Program:
    """The program in a message.

    Raises:
        BadRequest: its content does not have the hash that names it.
    """
    weights = tuple(
        WeightRef(ref.name, ref.sha256, ref.data_type, tuple(ref.dims)) for ref in message.weights
    )
    program = Program(message.graph, weights)
    if message.sha256 and program.sha256 != message.sha256:
        raise BadRequest(
            cause=f"program {message.sha256[:12]} does not match its hash",
            cure="Send the program again; run the same version on every device if it persists",
        )
    return program


def checked_model(program: Program) -> ModelProto:
    """The program's graph, without its weights.

    Raises:
        BadRequest: not ONNX, an unknown opset, custom operators or functions, a reference to a
            file, weights that clash or have impossible sizes.
    """
    model = ModelProto()
    try:
        model.ParseFromString(program.graph)
    except DecodeError:
        raise _refused("is not an ONNX model", "Export the model again") from None
    _check_opsets(model)
    if model.functions:
        raise _refused("defines local functions", "Export it without local functions")
    for tensor in _tensors(model.graph):
        if tensor.external_data or tensor.data_location == TensorProto.EXTERNAL:
            raise _refused(
                f"refers to an external file for {tensor.name!r}",
                "Name weights by the hash of their bytes; workers do not read external files",
            )
    _check_weights(model, program.weights)
    return model


def weight_bytes(ref: WeightRef) -> int:
    """The size of one weight."""
    return int(np.prod(ref.dims, dtype=np.int64)) * DTYPES[ref.data_type].itemsize


def declare_weight(model: ModelProto, ref: WeightRef, location: str) -> None:
    """Adds an initialiser whose bytes are the file `location` in the session's folder."""
    tensor = model.graph.initializer.add(
        name=ref.name, data_type=ref.data_type, dims=ref.dims, data_location=TensorProto.EXTERNAL
    )
    refer(tensor, location, weight_bytes(ref))


def matrices(model: ModelProto, weights: Sequence[WeightRef]) -> frozenset[str]:
    """Those of a program's large weights that only products read, as their second operand: an
    engine takes them as they are.
    """
    large = {ref.name for ref in weights if weight_bytes(ref) >= KEPT_FROM_BYTES}
    seconds: set[str] = set()
    others = {output.name for output in model.graph.output}
    for node in model.graph.node:
        for k, name in enumerate(node.input):
            (seconds if k == 1 and node.op_type in _PRODUCTS else others).add(name)
        others.update(name for attribute in node.attribute for name in _read_inside(attribute))
    return frozenset(large & seconds - others)


def _read_inside(attribute: AttributeProto) -> Iterator[str]:
    """What the nodes of nested graphs read."""
    for graph in (attribute.g, *attribute.graphs):
        for node in graph.node:
            yield from node.input
            for inner in node.attribute:
                yield from _read_inside(inner)


def declare_input(model: ModelProto, ref: WeightRef) -> None:
    """Adds a weight as an input, whose values an optimiser cannot see."""
    model.graph.input.append(helper.make_tensor_value_info(ref.name, ref.data_type, ref.dims))


def inputs_to_weights(model: ModelProto, weights: Iterable[WeightRef]) -> None:
    """Turns these inputs back into initialisers, whose bytes are files named by their hash."""
    refs = {ref.name: ref for ref in weights}
    inputs = [value for value in model.graph.input if value.name not in refs]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    for ref in refs.values():
        declare_weight(model, ref, ref.sha256)


def embed_weight(model: ModelProto, ref: WeightRef, data: bytes) -> None:
    """Adds an initialiser with its bytes."""
    model.graph.initializer.add(
        name=ref.name, data_type=ref.data_type, dims=ref.dims, raw_data=data
    )


def refer(tensor: TensorProto, location: str, length: int) -> None:
    """Makes an initialiser refer to a whole file."""
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def external_weights(model: ModelProto) -> list[TensorProto]:
    """The initialisers whose bytes are in files."""
    initializers = model.graph.initializer
    return [weight for weight in initializers if weight.data_location == TensorProto.EXTERNAL]


def location_of(weight: TensorProto) -> str:
    """The file of an external weight."""
    return next(entry.value for entry in weight.external_data if entry.key == "location")


def length_of(weight: TensorProto) -> int:
    """Bytes of an external weight."""
    return next(int(entry.value) for entry in weight.external_data if entry.key == "length")


def _check_opsets(model: ModelProto) -> None:
    for entry in model.opset_import:
        if entry.domain not in _DOMAINS:
            raise _refused(
                f"uses operators of the domain {entry.domain!r}",
                "Use only operators of ONNX and onnxruntime",
            )
        if entry.domain in ("", "ai.onnx") and entry.version not in OPSETS:
            raise _refused(
                f"has opset {entry.version}",
                f"Export it with an opset from {OPSETS.start} to {OPSETS.stop - 1}",
            )
    if not any(entry.domain in ("", "ai.onnx") for entry in model.opset_import):
        raise _refused("does not say which opset it uses", "Export the model again")


def _check_weights(model: ModelProto, weights: tuple[WeightRef, ...]) -> None:
    taken = {tensor.name for tensor in model.graph.initializer}
    for ref in weights:
        if ref.name in taken:
            raise _refused(f"defines the weight {ref.name!r} twice", "Cut the program again")
        taken.add(ref.name)
        if ref.data_type not in DTYPES or any(size < 0 for size in ref.dims):
            raise _refused(
                f"has a weight {ref.name!r} of data type {ref.data_type} and shape {ref.dims}",
                "Use plain numeric tensors only",
            )


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every tensor stored in the graph, its nodes' attributes and their nested graphs."""
    yield from graph.initializer
    sparse = list(graph.sparse_initializer)
    for node in graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            sparse.append(attribute.sparse_tensor)
            sparse.extend(attribute.sparse_tensors)
            for subgraph in (attribute.g, *attribute.graphs):
                yield from _tensors(subgraph)
    for entry in sparse:
        yield entry.values
        yield entry.indices


def _refused(what: str, cure: str) -> BadRequest:
    return BadRequest(cause=f"the program {what}", cure=cure)
