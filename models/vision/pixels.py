"""Pictures on the wire as uint8: a quarter of the bytes, and a bit-identical answer.

A model's input may be sent as pixels if normalising them inside the tiles' graphs gives, for every
value of every channel, exactly the same number as normalising on the host. A tensor that a client
has normalised itself is turned back into its pixels if exactly the same tensor comes of these.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from models.graph.graph import Graph
from models.graph.shapes import TensorInfo
from models.run.reference import WholeModel
from models.tensors.arrays import Arrays
from models.tensors.boxes import Box
from models.tensors.wire import Coded, Pixels
from models.vision.sidecar import Sidecar

_OPSET = 13
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
# Only such tensors are taken for pictures that no sidecar describes.
_BATCHED = 4


def with_pixels(graph: Graph, sidecar: Sidecar | None) -> Graph:
    """The graph with its picture sent as pixels, if it takes one and no bit of the answer
    changes.
    """
    if sidecar is None or sidecar.input is None:
        return graph
    name = sidecar.input.name
    info = graph.tensors.get(name)
    if info is None or info.data_type not in _FLOATS:
        return graph
    encoding = replace(sidecar.input.pixels, half=info.data_type == TensorProto.FLOAT16)
    if not encoding.fits(info.shape) or not is_exact(encoding):
        return graph
    return replace(graph, tensors={**graph.tensors, name: replace(info, wire=encoding)})


def without_pixels(graph: Graph) -> Graph:
    """The graph with its inputs sent unencoded."""
    return with_encodings(graph, dict.fromkeys(graph.inputs))


def with_encodings(graph: Graph, encodings: Mapping[str, Pixels | None]) -> Graph:
    """The graph with these inputs sent so."""
    infos = {name: replace(graph.tensors[name], wire=wire) for name, wire in encodings.items()}
    return replace(graph, tensors={**graph.tensors, **infos})


def as_pixels(
    graph: Graph, feeds: Arrays
) -> tuple[dict[str, np.ndarray], dict[str, Pixels | None]]:
    """The input tensors as they travel: as pixels where they are made of pixels; and the encodings
    of those that travel in another way than the graph says. The one decision on both: a tensor of
    the network's own type that is not made of pixels travels unencoded, whatever its shape.
    """
    sent, encodings = dict(feeds), dict[str, Pixels | None]()
    for name, array in feeds.items():
        info = graph.tensors[name]
        if not is_decided_by_values(info, array):
            continue
        told = (info.wire,) if isinstance(info.wire, Pixels) else ()
        fitting = (form for form in dict.fromkeys((*told, *usual())) if _may_be(form, array))
        ways = ((form, form.pixels(array)) for form in fitting)
        wire, pixels = next((way for way in ways if way[1] is not None), (None, None))
        if pixels is not None:
            sent[name] = pixels
        if wire != info.wire:
            encodings[name] = wire
    return sent, encodings


@cache
def usual() -> tuple[Pixels, ...]:
    """How clients make a tensor of a picture, where no sidecar says it."""
    known = (
        Pixels(1.0, (0.0,) * 3, (std,) * 3, channels_last=last)
        for last in (False, True)
        for std in (255.0, 1.0)
    )
    return tuple(filter(is_exact, known))


def is_decided_by_values(info: TensorInfo, array: np.ndarray) -> bool:
    """Whether a tensor for this input travels as pixels or unencoded by what it holds: always if
    the graph says pixels and the tensor is none, else if it has the form of a picture.
    """
    if isinstance(info.wire, Pixels):
        return array.dtype == info.dtype
    if info.wire is not None or info.data_type not in _FLOATS:
        return False
    return array.ndim == _BATCHED and any(_may_be(form, array) for form in usual())


def _may_be(encoding: Pixels, array: np.ndarray) -> bool:
    return encoding.dtype == array.dtype and encoding.fits(array.shape)


def as_values(graph: Graph, feeds: Arrays) -> dict[str, np.ndarray]:
    """The model's input tensors; `feeds` may hold pixels instead."""
    values = dict(feeds)
    for name, array in feeds.items():
        info = graph.tensors[name]
        if isinstance(info.wire, Pixels) and array.dtype != info.dtype:
            values[name] = info.wire.values(array)
    return values


def is_exact(encoding: Pixels) -> bool:
    """Whether onnxruntime decodes every value of every channel to exactly the host's number."""
    channels = len(encoding.mean)
    every = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    pixels = np.broadcast_to(every, (1, channels, 16, 16))
    if encoding.channels_last:
        pixels = pixels.transpose(0, 2, 3, 1)
    pixels = np.ascontiguousarray(pixels)
    made = TensorProto.FLOAT16 if encoding.half else TensorProto.FLOAT
    constants: dict[str, np.ndarray] = {}

    def constant(label: str, array: np.ndarray) -> str:
        constants[label] = array
        return label

    nodes = encoding.decode(Coded("values", "pixels", Box.whole(pixels.shape), constant))
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "pixels",
            [helper.make_tensor_value_info("pixels", TensorProto.UINT8, pixels.shape)],
            [helper.make_tensor_value_info("values", made, pixels.shape)],
            [numpy_helper.from_array(array, label) for label, array in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=8,
    )
    decoded = WholeModel(model, threads=1).run({"pixels": pixels})["values"]
    return decoded.tobytes() == encoding.values(pixels).tobytes()
