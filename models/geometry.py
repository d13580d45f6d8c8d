"""Backward geometry: from the boxes that a block must yield to everything it must read.

Demands of branches are united in their hull; what a branch reads of a larger hull is cropped
when the program is cut. Ranges are exact for any DAG; pads remain only on true borders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from models.boxes import Box
from models.graph import Graph, Node
from models.operators import operator


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
    for position in range(len(nodes) - 1, -1, -1):
        node = nodes[position]
        box = _yielded(graph, node, wanted)
        if box is None:
            continue
        declaration = operator(node)
        for name in node.outputs:
            wanted.pop(name, None)
            if name:
                computed[name] = box if name == node.outputs[0] else Box.whole(graph.shape(name))
        boxes = declaration.reads(graph, node, box)
        reads[position] = boxes
        for name, part in zip(node.inputs, boxes, strict=False):
            if part is None or not name or name in graph.constants:
                continue
            before = wanted.get(name)
            wanted[name] = part if before is None else before.hull(part)
    return Extent(computed, tuple(reads), wanted)


def _yielded(graph: Graph, node: Node, wanted: Mapping[str, Box]) -> Box | None:
    """The box of its first output that a node computes; None if nobody needs it."""
    boxes = [wanted[name] for name in node.outputs if name in wanted]
    if not boxes:
        return None
    first = node.outputs[0]
    box = wanted.get(first)
    if len(node.outputs) > 1 and any(name in wanted for name in node.outputs[1:]):
        box = Box.whole(graph.shape(first))
    assert box is not None
    return operator(node).yields(graph, node, box)
