"""How a program tells engines that it is a whole network, and which one.

An engine that computes only networks compiled beforehand finds its file by the SHA-256 of the ONNX
file that it was compiled from.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx

from models.cut.program import Program
from models.graph.graph import Graph

_KEY = "network"


class NetworkKey(NamedTuple):
    """What limits (`protos.wire.limits`) tell networks apart by: the SHA-256 of the ONNX file, the
    shapes of the inputs, and the types of inputs and outputs as they travel.
    """

    file: str
    shapes: frozenset[str]
    dtypes: frozenset[str]

    @classmethod
    def of(cls, graph: Graph) -> NetworkKey:
        """The same of a graph."""
        shapes = ("x".join(map(str, graph.shape(name))) for name in graph.inputs)
        ends = (*graph.inputs, *graph.results)
        dtypes = (graph.tensors[name].on_wire.dtype.name for name in ends)
        return cls(graph.file, frozenset(shapes), frozenset(dtypes))


def write_file(model: onnx.ModelProto, file: str) -> None:
    """Notes in a program that it is all of a network; `file` is the SHA-256 of its ONNX file, empty
    if it has none.
    """
    model.metadata_props.add(key=_KEY, value=file)


def whole_network(program: Program) -> str | None:
    """The SHA-256 of the ONNX file that the program computes all of; empty if that network comes
    from no file. None: the program is a part of a network.
    """
    told = onnx.ModelProto.FromString(program.graph).metadata_props
    return {each.key: each.value for each in told}.get(_KEY)
