"""Inputs of quantised networks, sent in the quantised form that the network computes first.

An input that only QuantizeLinear reads may be quantised before it is sent, as the operator is
elementwise. The operator stays in the network; tiles get values that it quantises to the same
numbers.
"""

from dataclasses import replace

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from models.graph.graph import Graph, Node
from models.run.reference import WholeModel
from models.tensors.arrays import Arrays
from models.tensors.boxes import Box
from models.tensors.wire import RUNTIME, Coded, Quantised

_QUANTISING = frozenset({"QuantizeLinear", f"{RUNTIME}.QuantizeLinear"})
_BITS = frozenset({TensorProto.UINT8, TensorProto.INT8})
_OPSET = 13


def with_quantised_inputs(graph: Graph) -> Graph:
    """The graph with every float32 input that it only quantises, always to the same 8 bits, sent
    quantised, if no bit of the answer changes.
    """
    found = dict(graph.tensors)
    for name in graph.inputs:
        info, encoding = graph.tensors[name], _quantised(graph, name)
        if encoding is not None and info.wire is None and is_exact(encoding):
            found[name] = replace(info, wire=encoding)
    return replace(graph, tensors=found)


def as_they_travel(graph: Graph, feeds: Arrays) -> dict[str, np.ndarray]:
    """The model's input tensors, quantised if they are sent so."""
    sent = dict(feeds)
    for name, array in feeds.items():
        info = graph.tensors[name]
        if isinstance(info.wire, Quantised) and array.dtype == info.dtype:
            sent[name] = info.wire.numbers(array)
    return sent


def is_exact(encoding: Quantised) -> bool:
    """Whether onnxruntime quantises like the host, and quantises decoded values to the same
    numbers: tested at every number, at the limits between them, and far beyond.
    """
    numbers, beside = np.arange(256).astype(encoding.dtype), _telling(encoding)
    run = _steps(encoding).run
    decoded = run({"numbers": numbers, "values": beside})["decoded"]
    values = np.concatenate([decoded, beside])
    quantised = run({"numbers": numbers, "values": values})["quantised"]
    same = np.array_equal(quantised, encoding.numbers(values))
    return same and np.array_equal(quantised[: len(numbers)], numbers)


def _steps(encoding: Quantised) -> WholeModel:
    """Decoding and quantising in separate sessions: onnxruntime would remove a pair that
    cancels.
    """
    constants: dict[str, np.ndarray] = {}

    def constant(label: str, array: np.ndarray) -> str:
        constants[label] = array
        return label

    nodes = encoding.decode(Coded("decoded", "numbers", Box.whole((256,)), constant))
    inputs = ["values", *nodes[0].input[1:]]
    nodes.append(helper.make_node("QuantizeLinear", inputs, ["quantised"]))
    kinds = {"numbers": encoding.data_type, "values": TensorProto.FLOAT}
    kinds |= {"decoded": TensorProto.FLOAT, "quantised": encoding.data_type}
    values = [helper.make_tensor_value_info(*item, None) for item in kinds.items()]
    weights = [numpy_helper.from_array(array, label) for label, array in constants.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "quantised", values[:2], values[2:], weights),
        opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(RUNTIME, 1)],
        ir_version=8,
    )
    return WholeModel(model, threads=1)


def _telling(encoding: Quantised) -> np.ndarray:
    """Test values for rounding, saturation and NaN (N,)."""
    span, scale = np.iinfo(encoding.dtype), np.float32(encoding.scale)
    steps = np.arange(span.min - 2, span.max + 3, 0.5) - encoding.zero_point
    with np.errstate(over="ignore"):
        exact = steps.astype(np.float32) * scale
    near = [np.nextafter(exact, np.float32(end)) for end in (-np.inf, np.inf)]
    beyond = np.array([np.inf, -np.inf, 3e38, -3e38, 1e-40, -0.0], np.float32)
    return np.concatenate([exact, *near, beyond])


def _quantised(graph: Graph, name: str) -> Quantised | None:
    """The quantisation of this input, if the network only quantises it."""
    readers = [graph.nodes[index] for index in graph.consumers.get(name, ())]
    ways = {_encoding(graph, node, name) for node in readers}
    if graph.tensors[name].data_type != TensorProto.FLOAT or name in graph.results:
        return None
    return ways.pop() if len(ways) == 1 else None


def _encoding(graph: Graph, node: Node, name: str) -> Quantised | None:
    scale, zero = ([*node.inputs, "", ""][place] for place in (1, 2))
    known = scale in graph.constants and (not zero or zero in graph.constants)
    if node.op not in _QUANTISING or node.inputs[0] != name or not known:
        return None
    data_type = graph.tensors[node.outputs[0]].data_type
    factor = graph.constants[scale]
    if data_type not in _BITS or factor.size != 1 or factor.dtype != np.float32:
        return None
    point = int(graph.constants[zero].item()) if zero else 0
    return Quantised(float(factor.item()), point, data_type)
