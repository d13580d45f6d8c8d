"""Whether every node fits the operator table's declaration of it.

Shape inference accepts many damaged attributes: no groups, a stride of zero, a kernel whose rank
differs from its map's. Applying each declaration once to the whole output finds them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from models.graph.graph import Graph, Node
from models.operators import operator
from models.tensors.boxes import Box
from protos.errors import BadRequest

# The exceptions of arithmetic on shapes and attributes of the wrong size, rank or type.
_MISFITS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


@contextmanager
def fitting(name: str, op: str) -> Iterator[None]:
    """Turns failures inside this context into an error about the node `name`, an `op`."""
    try:
        yield
    except _MISFITS as error:
        raise BadRequest(
            cause=f"node {name!r} ({op}) does not follow its operator's declaration",
            cure="Check the model with onnx.checker.check_model and export it again.",
        ) from error


def require_fitting(graph: Graph, node: Node) -> None:
    """Applies the node's declaration to its whole output.

    Raises:
        BadRequest: this fails, or reads beyond an input.
    """
    with fitting(node.name, node.op):
        declared = operator(node)
        whole = Box.whole(graph.shape(node.outputs[0]))
        yields = declared.yields(graph, node, whole)
        reads = declared.reads(graph, node, yields)
        declared.flop(graph, node, yields)
        for name, box in zip(node.inputs, reads, strict=False):
            if name and box is not None and not Box.whole(graph.shape(name)).contains(box):
                raise ValueError(f"{box} of {name!r} is read")
