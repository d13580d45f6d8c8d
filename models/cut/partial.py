"""Partial sums: a fully connected layer split over its input.

Each device multiplies the part of the input that it holds with the matching columns of the weights;
the sums of all devices add up to the layer's output, bias included once. The part may be rows of
the map that a Flatten turns into a vector: a device then needs only its own tile.
"""

import math
from collections.abc import Sequence

from onnx import helper

from models.cut.cutter import CutTile, TileBuilder
from models.cut.program import BlobSource
from models.graph.graph import Graph, Node
from models.operators import Kind, operator
from models.operators.geometry import Extent
from models.operators.work import NodeWork
from models.tensors.boxes import Box, Span

_FLATTENING = frozenset({"Flatten", "Reshape"})


def summed_input(graph: Graph, nodes: Sequence[Node]) -> str | None:
    """The tensor over whose parts a block can sum; None if it can't.

    Such a block is a chain of unary elementwise nodes and at most one flattening node that ends
    in a plain Gemm: y = x B + c.
    """
    *before, last = nodes
    if last.op != "Gemm" or last.int("transA", 0) or last.inputs[1] not in graph.constants:
        return None
    if any(float(last.attributes.get(name, 1.0)) != 1.0 for name in ("alpha", "beta")):
        return None
    expected = last.inputs[0]
    for node in reversed(before):
        computed = [name for name in node.inputs if name and name not in graph.constants]
        unary = operator(node).kind is Kind.POINTWISE and len(node.inputs) == 1
        if node.outputs[0] != expected or not (unary or node.op in _FLATTENING):
            return None
        expected = computed[0]
    if graph.shape(last.outputs[0])[0] != 1 or graph.shape(expected)[0] != 1:
        return None
    return expected


def partial_extent(graph: Graph, nodes: Sequence[Node], part: Box) -> Extent:
    """What a device that sums over `part` computes and reads."""
    tensor = summed_input(graph, nodes)
    assert tensor is not None
    output = nodes[-1].outputs[0]
    return Extent({output: Box.whole(graph.shape(output))}, (), {tensor: part})


def cut_partial(graph: Graph, nodes: Sequence[Node], part: Box, blobs: BlobSource) -> CutTile:
    """The program that sums over `part` of the block's input; `summed_input` must allow it.

    The bias is added by the part that begins at the input's first element.
    """
    reach = partial_extent(graph, nodes, part)
    builder = TileBuilder(graph, reach, blobs, [nodes[-1].outputs[0]], static=True)
    *before, last = nodes
    for node in before:
        if node.op in _FLATTENING:
            builder.nodes.append(
                helper.make_node("Flatten", [builder.source(node.inputs[0])], node.outputs)
            )
        else:
            builder.copy(node)
    inputs = [last.inputs[0], _weights(builder, nodes, part)]
    if len(last.inputs) > 2 and last.inputs[2] and _is_first(part):
        bias = last.inputs[2]
        inputs.append(builder.box_of(bias, Box.whole(graph.shape(bias))))
    builder.copy(last, inputs)
    return CutTile(builder.program(), dict(reach.inputs), dict(reach.computed))


def _weights(builder: TileBuilder, nodes: Sequence[Node], part: Box) -> str:
    """Adds the Gemm's weights for the flattened `part` of its block's input, in its layout."""
    graph, last = builder.graph, nodes[-1]
    tensor = summed_input(graph, nodes)
    assert tensor is not None
    name = last.inputs[1]
    map_shape = graph.shape(tensor)[1:]
    if last.int("transB", 0):
        outputs = graph.shape(name)[0]
        box = Box((Span(0, outputs), *part[1:]))
        shape, dims = (outputs, *map_shape), (outputs, math.prod(part.shape))
    else:
        outputs = graph.shape(name)[1]
        box = Box((*part[1:], Span(0, outputs)))
        shape, dims = (*map_shape, outputs), (math.prod(part.shape), outputs)
    return builder.box_of(name, box, shape=shape, dims=dims)


def partial_work(graph: Graph, nodes: Sequence[Node], part: Box) -> NodeWork:
    """The work of a device that sums over `part`."""
    last = nodes[-1]
    outputs = graph.shape(last.outputs[0])[-1]
    itemsize = graph.tensors[last.outputs[0]].itemsize
    inner = math.prod(part.shape)
    return NodeWork(
        layer_type=operator(last).layer_type,
        flop=2 * inner * outputs,
        input_bytes=inner * itemsize,
        output_bytes=outputs * itemsize,
        weight_bytes=(inner + _is_first(part)) * outputs * itemsize,
        input_channels=inner,
        output_channels=outputs,
    )


def _is_first(part: Box) -> bool:
    return all(span.start == 0 for span in part)
