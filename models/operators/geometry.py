"""Backward geometry: from the boxes that a block must yield to everything it must read.

Demands of branches are combined into their hull; each branch's part of a larger hull is cropped
when the program is cut. Ranges are exact for any DAG; pads remain only on the map's own edges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from models.graph.graph import Graph, Node
from models.operators import operator
from models.tensors.boxes import Box


@dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """What a run of nodes computes and reads for one tile.

    `computed[t]`: the box that is computed of a tensor made by these nodes. `reads[i][k]`: the
    box that node `i` (position in the run) reads of its k-th input. `inputs[t]`: the box needed
    of a tensor made elsewhere; `constants[t]` the same for constants, one box per distinct use.
    """

    computed: Mapping[str, Box]
    reads: tuple[tuple[Box | None, ...], ...]
    inputs: Mapping[str, Box]


def extent(graph: Graph, nodes: Sequence[Node], demand: Mapping[str, Box]) -> Extent:
    """Propagates `demand` (boxes of tensors, by name) backwards through `nodes`.

    Tensors in `demand` that these nodes don't make pass through to `inputs`, so that runs can
    be chained: extending a block at its front costs only the new layers.
    """
    wanted: dict[str, Box] = dict(demand)
    computed: dict[str, Box] = {}
    reads: list[tuple[Box | None, ...]] = [()] * len(nodes)
    constants = graph.constants
    for position in range(len(nodes) - 1, -1, -1):
        node = nodes[position]
        first = node.outputs[0]
        box = wanted.pop(first, None)
        if len(node.outputs) > 1:
            others = [name for name in node.outputs[1:] if wanted.pop(name, None) is not None]
            box = Box.whole(graph.shape(first)) if others else box
        if box is None:
            continue
        declaration = operator(node)
        for name in node.outputs[1:]:
            if name:
                computed[name] = Box.whole(graph.shape(name))
        computed[first] = box = declaration.yields(graph, node, box)
        reads[position] = boxes = declaration.reads(graph, node, box)
        for name, part in zip(node.inputs, boxes, strict=False):
            if part is not None and name and name not in constants:
                before = wanted.get(name)
                wanted[name] = part if before is None else before.hull(part)
    return Extent(computed, tuple(reads), wanted)
