"""The protocol over gRPC: messages to requests, and answers to messages."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from coordinator.serving.oip.request import (
    LONGEST_ID,
    InferAnswer,
    InferRequest,
    RequestedOutput,
    class_count,
    refuse_unsupported,
    require_inputs,
    require_outputs,
)
from coordinator.serving.oip.tensors import (
    datatype_of,
    from_bytes,
    from_values,
    name_of,
    require,
    to_bytes,
)
from models.graph.graph import Graph
from models.graph.shapes import TensorInfo
from protos import inference_pb2 as pb
from protos.errors import BadRequest

# The field with a tensor's values if they are not raw bytes.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def read_request(message: pb.ModelInferRequest, graph: Graph) -> InferRequest:
    """An inference request.

    Raises:
        BadRequest: it violates the protocol, or does not fit the model's inputs.
        Unsupported: it asks for shared memory or sequences.
    """
    refuse_unsupported(_plain(message.parameters))
    if len(message.id) > LONGEST_ID:
        raise BadRequest(cause="'id' is too long", cure="Send a short one")
    names = [each.name for each in message.inputs]
    require_inputs(names, graph)
    raw = message.raw_input_contents
    if raw and len(raw) != len(names):
        raise BadRequest(
            cause=f"there are {len(raw)} raw_input_contents for {len(names)} inputs",
            cure="Send one for each input in order, or none at all",
        )
    feeds = {
        each.name: _input(each, raw[index] if raw else None, graph.tensors[each.name])
        for index, each in enumerate(message.inputs)
    }
    wanted = tuple(_output(each) for each in message.outputs) or tuple(
        RequestedOutput(name, binary=True) for name in graph.outputs
    )
    require_outputs(wanted, graph)
    return InferRequest(message.id, feeds, wanted)


def write_answer(answer: InferAnswer) -> pb.ModelInferResponse:
    """The answer, with every output as raw bytes."""
    message = pb.ModelInferResponse(
        model_name=answer.model, model_version=answer.version, id=answer.id
    )
    for each, array in answer.outputs:
        message.outputs.add(name=each.name, datatype=name_of(array), shape=array.shape)
        message.raw_output_contents.append(to_bytes(array))
    return message


def _input(
    each: pb.ModelInferRequest.InferInputTensor, raw: bytes | None, info: TensorInfo
) -> np.ndarray:
    refuse_unsupported(_plain(each.parameters))
    require(each.name, each.datatype, each.shape[: len(info.shape) + 1], info)
    if raw is not None:
        if each.HasField("contents"):
            raise BadRequest(
                cause=f"the input {each.name!r} has both contents and raw_input_contents",
                cure="Send one of them",
            )
        return from_bytes(each.name, raw, info)
    field = _CONTENTS.get(datatype_of(info))
    if field is None:
        raise BadRequest(
            cause=f"the input {each.name!r} is {each.datatype}, which contents cannot hold",
            cure="Send raw_input_contents",
        )
    values = getattr(each.contents, field)
    if len(values) != math.prod(info.shape):
        raise BadRequest(
            cause=f"the input {each.name!r} has {len(values)} {field}",
            cure=f"{each.datatype} {list(info.shape)} takes {math.prod(info.shape)}",
        )
    return from_values(each.name, np.array(values), info)


def _output(each: pb.ModelInferRequest.InferRequestedOutputTensor) -> RequestedOutput:
    parameters = _plain(each.parameters)
    refuse_unsupported(parameters)
    return RequestedOutput(
        each.name, binary=True, classes=class_count(parameters.get("classification"))
    )


def _plain(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "bool_param")
        for key, value in parameters.items()
    }
