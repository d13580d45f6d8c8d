"""Shapes behind operators that ONNX does not declare, or declares only by a function, inferred by
onnxruntime.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from models.shapes import TensorInfo
from protos.errors import BadRequest

# onnxruntime's messages begin with a place in its source and end with the reason.
MOST_SAID = 300


def told_shapes(
    model: onnx.ModelProto,
    inputs: Sequence[onnx.ValueInfoProto],
    known: Mapping[str, TensorInfo],
    names: Collection[str],
) -> dict[str, TensorInfo]:
    """Shapes that onnxruntime infers for the named tensors, given the model's `inputs` and the
    `known` shapes of others. Nothing is computed. onnxruntime reports unknown shapes like scalars,
    so scalars are left out.

    Raises:
        BadRequest: onnxruntime cannot load the model.
    """
    asking = onnx.ModelProto()
    asking.CopyFrom(model)
    bound = {value.name: value for value in inputs}
    for value in asking.graph.input:
        value.CopyFrom(bound.get(value.name, value))
    given = {value.name for value in asking.graph.output}
    made = {name for node in asking.graph.node for name in node.output} - given
    del asking.graph.value_info[:]
    asking.graph.value_info.extend(
        helper.make_tensor_value_info(name, known[name].data_type, known[name].shape)
        for name in sorted(made & known.keys())
    )
    # Steps that folding wrote are not the model's.
    asking.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name in made)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            asking.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime has an exception type for each error code
        raise refused(error) from error
    told = {}
    for entry in session.get_outputs():
        kind = _element_type(entry.type)
        sized = entry.shape and all(isinstance(size, int) for size in entry.shape)
        if entry.name in names and kind and sized:
            told[entry.name] = TensorInfo(tuple(entry.shape), kind)
    return told


def refused(error: Exception) -> BadRequest:
    """The error for a model that onnxruntime does not run."""
    said = " ".join(str(error).split())
    return BadRequest(
        cause=f"onnxruntime cannot run the model ({said[-MOST_SAID:]})",
        cure="Check it with onnx.checker.check_model and export it again.",
    )


def _element_type(kind: str) -> int:
    """The ONNX type of a "tensor(...)"; 0 if it is not a tensor."""
    name = kind.removeprefix("tensor(").removesuffix(")").upper()
    return dict(TensorProto.DataType.items()).get(name, 0)
