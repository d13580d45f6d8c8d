"""Shapes behind operators that ONNX does not declare, or declares only by a function, inferred by
onnxruntime, and shapes that a file declares, confirmed by a run of it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from models.graph.shapes import STEERING_ELEMENTS, TensorInfo, forget_declared, info_of, static_info
from models.tensors.arrays import Arrays
from protos.errors import BadRequest

# onnxruntime's messages begin with a place in its source and end with the reason.
MOST_SAID = 300
# Half a millisecond each; deep transformers have some dozens that differ.
_MOST_ASKED = 2_000


def told_shapes(
    model: ModelProto,
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
    asking = _bound(model, inputs)
    given = {value.name for value in asking.graph.output}
    made = {name for node in asking.graph.node for name in node.output} - given
    asking.graph.value_info.extend(
        helper.make_tensor_value_info(name, known[name].data_type, known[name].shape)
        for name in sorted(made & known.keys())
    )
    # Steps that folding wrote are not the model's.
    asking.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name in made)
    try:
        return {name: info for name, info in _inferred(asking) if name in names}
    except Exception as error:  # onnxruntime has an exception type for each error code
        raise refused(error) from error


def confirmed_shapes(
    model: ModelProto, inputs: Sequence[onnx.ValueInfoProto], declared: Mapping[str, TensorInfo]
) -> dict[str, TensorInfo]:
    """Those of the shapes that a file declares of its tensors which they have in one run."""
    made = {name for node in model.graph.node for name in node.output}
    names = [name for name in declared if name in made]
    asking = _bound(model, inputs)
    del asking.graph.output[:]
    asking.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    rng = np.random.Generator(np.random.PCG64(0))
    feeds = {}
    for value in inputs:
        info = static_info(value)
        if info is None:
            return {}
        noise = rng.standard_normal(info.shape)
        feeds[value.name] = (noise if info.dtype.kind == "f" else 0 * noise).astype(info.dtype)
    try:
        results = session(asking, optimised=False, severity=4).run(names, feeds)
    except Exception:  # onnxruntime has an exception type for each error code
        return {}
    found = zip(names, results, strict=True)
    shapes = {name: info_of(array) for name, array in found if isinstance(array, np.ndarray)}
    return {name: info for name, info in shapes.items() if info == declared[name]}


def _bound(model: ModelProto, inputs: Sequence[onnx.ValueInfoProto]) -> ModelProto:
    """A copy of the model with these inputs, and no shapes declared inside."""
    copied = ModelProto()
    copied.CopyFrom(model)
    # What a file declares is repeated unseen.
    forget_declared(copied.graph)
    bound = {value.name: value for value in inputs}
    for value in copied.graph.input:
        value.CopyFrom(bound.get(value.name, value))
    return copied


class NodeShapes:
    """What onnxruntime infers for the outputs of one node after the other. Equal nodes with inputs
    of the same shapes are asked for once.
    """

    def __init__(self, opsets: Sequence[onnx.OperatorSetIdProto]) -> None:
        self._opsets = list(opsets)
        self._ir_version = helper.find_min_ir_version_for(self._opsets, ignore_unknown=True)
        self._found: dict[bytes, list[TensorInfo | None]] = {}

    def of(
        self, node: NodeProto, known: Mapping[str, TensorInfo], constants: Arrays
    ) -> dict[str, TensorInfo]:
        """Shapes of its outputs, from those of its inputs; none if one of these is not `known`, or
        onnxruntime does not know them.
        """
        read = list(dict.fromkeys(name for name in node.input if name))
        made = [name for name in node.output if name]
        if not all(name in known or name in constants for name in read):
            return {}
        # The same node has the same bytes, whatever its tensors are called.
        plain = {name: f"t{k}" for k, name in enumerate([*read, *made])}
        asking = ModelProto(ir_version=self._ir_version, opset_import=self._opsets)
        asking.graph.name = "node"
        only = asking.graph.node.add()
        only.CopyFrom(node)
        only.name = only.doc_string = ""
        only.input[:] = [plain.get(name, "") for name in node.input]
        only.output[:] = [plain.get(name, "") for name in node.output]
        for name in read:
            array = constants.get(name)
            if array is not None and array.size <= STEERING_ELEMENTS:
                asking.graph.initializer.append(numpy_helper.from_array(array, plain[name]))
            else:
                info = info_of(array) if array is not None else known[name]
                asking.graph.input.append(
                    helper.make_tensor_value_info(plain[name], info.data_type, info.shape)
                )
        asking.graph.output.extend(onnx.ValueInfoProto(name=plain[name]) for name in made)
        key = asking.SerializeToString(deterministic=True)
        if key not in self._found:
            if len(self._found) >= _MOST_ASKED:
                return {}
            try:
                told = dict(_inferred(asking))
            except Exception:  # it has to be asked for with all of the model
                told = {}
            self._found[key] = [told.get(plain[name]) for name in made]
        found = zip(made, self._found[key], strict=True)
        return {name: info for name, info in found if info is not None}


def session(
    model: ModelProto, threads: int = 1, *, optimised: bool = True, severity: int = 3
) -> ort.InferenceSession:
    """A session of plain onnxruntime on the CPU, which logs what is of this severity: 3 are errors.
    It may leave its optimisations out; 0 threads are as many as it chooses.

    Raises:
        Exception: what onnxruntime raises, of a type for each error code.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = severity
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _inferred(model: ModelProto) -> Iterator[tuple[str, TensorInfo]]:
    for entry in session(model, optimised=False, severity=4).get_outputs():
        # The ONNX type of a "tensor(...)"; 0 if it is not a tensor.
        name = entry.type.removeprefix("tensor(").removesuffix(")").upper()
        kind = dict(TensorProto.DataType.items()).get(name, 0)
        if kind and entry.shape and all(isinstance(size, int) for size in entry.shape):
            yield entry.name, TensorInfo(tuple(entry.shape), kind)


def refused(error: Exception) -> BadRequest:
    """The error for a model that onnxruntime does not run."""
    said = " ".join(str(error).split())
    return BadRequest(
        cause=f"onnxruntime cannot run the model ({said[-MOST_SAID:]})",
        cure="Check it with onnx.checker.check_model and export it again.",
    )
