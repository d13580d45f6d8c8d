"""The work of a node for a tile: FLOPs and sizes, the inputs of every cost model."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from models.graph.graph import Graph, Node
from models.operators import is_sequential, operator
from models.operators.geometry import Extent, extent
from models.tensors.boxes import Box
from models.tensors.memory import KEPT_FROM_BYTES

_PRODUCTS = ("fully_connected", "product")
# Most runtimes fuse these into the convolution before them.
LIGHT = frozenset({"elementwise", "normalisation"})
# Of a Raspberry Pi. A convolution computes on all of them.
CORES = 4
_LONE: WeakKeyDictionary[Graph, frozenset[str]] = WeakKeyDictionary()


class NodeWork(NamedTuple):
    """One node's computation for one tile.

    `flop` counts 2 per multiply-add. `layer_type` names the cost regression. `lone`: there is
    no convolution before it that a runtime could fuse it with. `pace`: how long one of its FLOPs
    takes, in FLOPs of a convolution on all cores, where the node was timed; 0 elsewhere.
    """

    layer_type: str
    flop: int
    input_bytes: int
    output_bytes: int
    weight_bytes: int
    input_channels: int = 1
    output_channels: int = 1
    output_pixels: int = 1
    taps: int = 1
    groups: int = 1
    lone: bool = False
    pace: float = 0.0

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel of its output reads one channel of its input alone."""
        return (
            self.groups > 1
            and self.flop <= 2 * self.taps * self.output_channels * self.output_pixels
        )

    @property
    def is_product(self) -> bool:
        """Whether it is a product with a matrix."""
        return self.layer_type in _PRODUCTS

    @property
    def is_fused(self) -> bool:
        """Whether runtimes compute it together with the convolution before it: what follows one and
        reads nothing else.
        """
        return self.layer_type in LIGHT and not self.lone and self.input_bytes <= self.output_bytes

    @property
    def paced_flop(self) -> float:
        """FLOPs of a convolution that take as long, where that is known."""
        return self.flop * (self.pace or 1.0)

    @property
    def relaid_bytes(self) -> int:
        """Bytes of its weights that the engine lays out anew: all but large matrices."""
        stays = self.is_product and self.weight_bytes >= KEPT_FROM_BYTES
        return 0 if stays else self.weight_bytes


def node_work(graph: Graph, node: Node, output: Box, reads: Sequence[Box | None]) -> NodeWork:
    """The work of one node whose output box and input boxes are known."""
    declared = operator(node)
    input_bytes = weight_bytes = 0
    tensors, constants = graph.tensors, graph.constants
    for name, box in zip(node.inputs, reads, strict=False):
        if box is None or not name:
            continue
        size = box.volume * tensors[name].itemsize
        if name in constants:
            weight_bytes += size
        else:
            input_bytes += size
    taps = math.prod([window.kernel for window in node.windows])
    channels_in = reads[0][1] if reads[0] is not None and len(reads[0]) > 1 else (0,)
    # Other operators may have whatever they like under this name.
    groups = node.int("group", 1) if declared.layer_type == "convolution" else 1
    flop = declared.flop(graph, node, output)
    pace = 0.0
    if node.timed_flop:
        pace = (CORES if is_sequential(node) else 1) * node.timed_flop / max(1, flop)
    return NodeWork(
        layer_type=declared.layer_type,
        flop=flop,
        input_bytes=input_bytes,
        output_bytes=output.volume * tensors[node.outputs[0]].itemsize,
        weight_bytes=weight_bytes,
        input_channels=len(channels_in),
        output_channels=len(output[1]) if len(output) > 1 else 1,
        output_pixels=math.prod(output.shape[2:]),
        taps=taps,
        groups=groups,
        lone=node.outputs[0] in _lone(graph),
        pace=pace,
    )


def _lone(graph: Graph) -> frozenset[str]:
    """What no convolution makes, nor steps that runtimes fuse with the convolution before them."""
    found = _LONE.get(graph)
    if found is None:
        fused: set[str] = set()
        for node in graph.nodes:
            kind = operator(node).layer_type
            follows = kind in LIGHT and not fused.isdisjoint(node.inputs)
            if kind == "convolution" or follows:
                fused.update(node.outputs)
        found = _LONE[graph] = frozenset(graph.producer) - fused
    return found


def works(graph: Graph, nodes: Sequence[Node], reach: Extent) -> list[NodeWork]:
    """The work of every node that the tile computes."""
    return [
        node_work(graph, node, reach.computed[node.outputs[0]], reach.reads[position])
        for position, node in enumerate(nodes)
        if node.outputs[0] in reach.computed
    ]


def tile_works(graph: Graph, nodes: Sequence[Node], demand: Mapping[str, Box]) -> list[NodeWork]:
    """The work of a block for one tile."""
    return works(graph, nodes, extent(graph, nodes, demand))
