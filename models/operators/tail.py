"""The tail of a network as one operator of imbrex: nodes whose shapes depend on values, such as
non-maximum suppression, and all that follows them. It runs whole, on one device.
"""

from onnx import NodeProto

from models.graph.graph import Graph, Node
from models.graph.soundness import rename
from models.operators.arrange import DOMAIN
from models.operators.declaration import Boxes, BoxPiece, Emitter, Kind, Operator
from models.tensors.boxes import Box

OP = "Tail"
# The attribute that holds the nodes, as a graph with the node's own inputs.
BODY = "body"


def _reads(graph: Graph, node: Node, box: Box) -> Boxes:
    return tuple(Box.whole(graph.shape(name)) for name in node.inputs)


def _yields(graph: Graph, node: Node, box: Box) -> Box:
    return Box.whole(graph.shape(node.outputs[0]))


def _build(piece: BoxPiece, program: Emitter) -> None:
    body = piece.node.attributes[BODY]
    names = {given.name: name for given, name in zip(body.input, piece.inputs, strict=True)}
    for each in body.node:
        proto = NodeProto()
        proto.CopyFrom(each)
        rename(proto, names)
        program.append(proto)


def _flop(graph: Graph, node: Node, box: Box) -> int:
    return node.timed_flop or box.volume


TAIL = {
    f"{DOMAIN}.{OP}": Operator(
        Kind.OPAQUE, "opaque", _reads, yields=_yields, build=_build, flop=_flop, heavy=True
    )
}
