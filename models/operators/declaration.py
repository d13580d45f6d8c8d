"""A declaration in the operator table: how output boxes depend on input boxes, and how a node is
written into the program of one tile.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import onnx
from onnx import NodeProto

from models.graph.graph import Graph, Node
from models.tensors.boxes import Box

Boxes = tuple[Box | None, ...]
Attribute = int | float | str | list[int] | list[float]


class Kind(StrEnum):
    """How an operator's outputs depend on its inputs."""

    POINTWISE = "pointwise"
    WINDOWED = "windowed"
    RESAMPLING = "resampling"
    LAYOUT = "layout"
    MIXING = "mixing"
    REDUCING = "reducing"
    OPAQUE = "opaque"


class Emitter(ABC):
    """The program of a tile, into which nodes of an ONNX opset are written."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[NodeProto] = []

    def emit(self, op: str, inputs: list[str], output: str, **attributes: Attribute) -> str:
        """Appends a node that is not part of the network and returns the name of its output."""
        proto = onnx.helper.make_node(op, inputs, [output], name=output)
        self.nodes.append(with_attributes(proto, attributes))
        return output

    @abstractmethod
    def constant(self, label: str, array: np.ndarray) -> str:
        """Adds a constant, returning its name."""

    @abstractmethod
    def crop(self, name: str, have: Box, want: Box) -> str:
        """The box `want` of a tensor that holds `have`."""


@dataclass(frozen=True, slots=True, eq=False)
class BoxPiece:
    """One node's part of a tile. `inputs` names the tensors that hold exactly the boxes `reads`;
    the node writes `output` to a tensor of its own name.
    """

    graph: Graph
    node: Node
    output: Box
    reads: Boxes
    inputs: tuple[str, ...]

    @property
    def name(self) -> str:
        """The tensor that it makes."""
        return self.node.outputs[0]

    def copy(self, program: Emitter, **changed: Attribute | None) -> None:
        """Writes the node unchanged except for these attributes (None: left out)."""
        proto = NodeProto()
        proto.CopyFrom(self.node.proto)
        proto.input[:] = self.inputs
        kept = [attribute for attribute in proto.attribute if attribute.name not in changed]
        del proto.attribute[:]
        proto.attribute.extend(kept)
        given = {key: value for key, value in changed.items() if value is not None}
        program.nodes.append(with_attributes(proto, given))


def with_attributes(proto: NodeProto, attributes: Mapping[str, Attribute]) -> NodeProto:
    """The same node, with these attributes added."""
    for key, value in attributes.items():
        proto.attribute.append(onnx.helper.make_attribute(key, value))
    return proto


def as_it_is(piece: BoxPiece, program: Emitter) -> None:
    """The node does the same to a part as to the whole."""
    piece.copy(program)


def one_per_element(graph: Graph, node: Node, output: Box) -> int:
    """FLOPs of an operator that touches every element of its output once."""
    return output.volume


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of the table.

    `reads(graph, node, box)` gives the box of every input (None: not read) that the output box
    needs. `yields(graph, node, box)` widens a demanded box to one that the operator can yield.
    `build(piece, program)` writes the node for one tile. `flop(graph, node, box)` counts 2 per
    multiply-add. `refuses(graph, node)` says why a node cannot use the declaration and is opaque
    (empty: it can). `layer_type` names the cost regression that predicts it. `heavy` operators
    begin a layer; the others belong to the layer before them. `aligned`: along any axis a part of
    the output needs the same part of an input, or all of it, whichever part it is. `in_parts(graph,
    node)`, if given: rows come in parts of so many of the output's, which are computed together
    from so many of the first input's; None if any row needs everything.
    """

    kind: Kind
    layer_type: str
    reads: Callable[[Graph, Node, Box], Boxes]
    yields: Callable[[Graph, Node, Box], Box] = lambda graph, node, box: box
    build: Callable[[BoxPiece, Emitter], None] = as_it_is
    flop: Callable[[Graph, Node, Box], int] = one_per_element
    refuses: Callable[[Graph, Node], str] = lambda graph, node: ""
    heavy: bool = False
    aligned: bool = False
    in_parts: Callable[[Graph, Node], tuple[int, int] | None] | None = None
