"""Pictures on the wire as uint8: a quarter of the bytes, and a bit-identical answer.

A model's input may be sent as pixels if normalising them inside the tiles' graphs gives, for every
value of every channel, exactly the same float32 as normalising on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from models.boxes import Span
from models.graph import Graph
from models.reference import WholeModel
from models.vision.sidecar import Sidecar
from models.wire import Coded, Pixels

_OPSET = 13


def with_pixels(graph: Graph, sidecar: Sidecar | None) -> Graph:
    """The graph with its picture sent as pixels, if it takes one and no bit of the answer
    changes.
    """
    if sidecar is None:
        return graph
    name, encoding = sidecar.input.name, sidecar.input.pixels
    info = graph.tensors.get(name)
    if info is None or info.data_type != TensorProto.FLOAT or not is_exact(encoding):
        return graph
    return replace(graph, tensors={**graph.tensors, name: replace(info, wire=encoding)})


def without_pixels(graph: Graph) -> Graph:
    """The graph with its inputs sent unencoded."""
    plain = {name: replace(graph.tensors[name], wire=None) for name in graph.inputs}
    return replace(graph, tensors={**graph.tensors, **plain})


def as_values(graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The model's input tensors; `feeds` may hold pixels instead."""
    values = dict(feeds)
    for name, array in feeds.items():
        info = graph.tensors[name]
        if isinstance(info.wire, Pixels) and array.dtype != info.dtype:
            values[name] = info.wire.values(array)
    return values


def is_exact(encoding: Pixels) -> bool:
    """Whether onnxruntime decodes every value of every channel to exactly the host's float32."""
    channels = len(encoding.mean)
    every = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    pixels = np.ascontiguousarray(np.broadcast_to(every, (1, channels, 16, 16)))
    constants: dict[str, np.ndarray] = {}

    def constant(label: str, array: np.ndarray) -> str:
        constants[label] = array
        return label

    nodes = encoding.decode(Coded("values", "pixels", Span(0, channels), constant))
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "pixels",
            [helper.make_tensor_value_info("pixels", TensorProto.UINT8, pixels.shape)],
            [helper.make_tensor_value_info("values", TensorProto.FLOAT, pixels.shape)],
            [numpy_helper.from_array(array, label) for label, array in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=8,
    )
    decoded = WholeModel(model, threads=1).run({"pixels": pixels})["values"]
    return decoded.tobytes() == encoding.values(pixels).tobytes()
