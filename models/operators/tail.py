"""The tail of a network as one operator of imbrex: nodes whose shapes depend on values, such as
non-maximum suppression, and all that follows them. It runs whole, on one device.
"""

from onnx import NodeProto

from models.graph.soundness import rename
from models.operators.declaration import BoxPiece, Emitter

OP = "Tail"
# The attribute that holds the nodes, as a graph with the node's own inputs.
BODY = "body"


def build_tail(piece: BoxPiece, program: Emitter) -> None:
    """Writes the nodes inside the tail as nodes of the program."""
    body = piece.node.attributes[BODY]
    names = {given.name: name for given, name in zip(body.input, piece.inputs, strict=True)}
    for node in body.node:
        proto = NodeProto()
        proto.CopyFrom(node)
        rename(proto, names)
        program.nodes.append(proto)
