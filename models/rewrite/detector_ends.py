"""Finds the end of a detector that picks its boxes itself (YOLOv10, YOLO26).

Its first TopK needs the scores of every entry of a list (boxes times values), so that one device
would need the whole list to make a few rows of it. These rows are as well made where the answer is
put together, of the entries alone that can be among them: whoever reads rows of a score of at least
some threshold needs no entry whose best score is less.

That holds for what `ending` accepts. A first TopK ranks entries by the best of their scores, a
second one ranks the scores of these entries, and each row has one of these, values of its entry,
and what follows from its position. Entries below the threshold rank behind all others, whatever
their values are, and so do their scores; of equal ones the first comes first, as before.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from models.graph.ending import ENTRIES, VALUES, Ending
from models.graph.shapes import TensorInfo
from models.rewrite.draft import attributes_of, joined_axis, op_of, slice_of
from models.tensors.arrays import Arrays
from models.tensors.boxes import Span

# What only moves entries, or computes their positions.
_MOVING = frozenset(
    {
        *("Cast", "Concat", "Div", "Expand", "Flatten", "Floor", "GatherElements", "Identity"),
        *("Mod", "Mul", "ReduceMax", "Reshape", "Slice", "Split", "Squeeze", "Sub", "Tile", "TopK"),
        *("Unsqueeze",),
    }
)
# What may stand between a list and its ranking.
_LEADING = frozenset({"ReduceMax", "Slice", "Split"})
_RESHAPING = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_REPEATING = _RESHAPING | {"Cast", "Expand", "Floor", "Tile"}


def ending(
    model: ModelProto,
    nodes: Sequence[NodeProto],
    tensors: Mapping[str, TensorInfo],
    constants: Arrays,
) -> tuple[list[NodeProto], Ending | None]:
    """The nodes before the ending, and the ending; all nodes and None if there is none like that.
    `nodes` are the model's in topological order.
    """
    outputs = [value.name for value in model.graph.output]
    last = _picking(nodes, frozenset(outputs))
    behind = [node for node, late in zip(nodes, last, strict=True) if late]
    made = {name for node in behind for name in node.output}
    read = {name for node in behind for name in node.input if name} - made
    sources = [name for name in read if name not in constants]
    mine = tuple(name for name in outputs if name in made)
    if len(sources) != 1 or len(mine) != 1:
        return [*nodes], None
    (source,), (output,) = sources, mine
    picked = _Picked.of(behind, tensors, constants, source)
    column = None if picked is None else picked.column(output)
    if picked is None or column is None:
        return [*nodes], None
    inner = helper.make_graph(
        behind,
        "ending",
        [_described(source, tensors)],
        [_described(output, tensors)],
        [numpy_helper.from_array(constants[name], name) for name in sorted(read - {source})],
    )
    proto = helper.make_model(inner, opset_imports=model.opset_import, ir_version=model.ir_version)
    before = [node for node, late in zip(nodes, last, strict=True) if not late]
    return before, Ending(proto, source, mine, picked.scores, column)


def _described(name: str, tensors: Mapping[str, TensorInfo]) -> onnx.ValueInfoProto:
    info = tensors[name]
    return helper.make_tensor_value_info(name, info.data_type, info.shape)


def _picking(nodes: Sequence[NodeProto], outputs: frozenset[str]) -> list[bool]:
    """Which nodes follow the first TopK, or only prepare what these read. None of them if one does
    anything but move entries.
    """
    made: set[str] = set()
    behind = []
    for node in nodes:
        late = op_of(node) == "TopK" or not made.isdisjoint(node.input)
        if late and op_of(node) not in _MOVING:
            return [False] * len(nodes)
        made.update(node.output if late else ())
        behind.append(late)
    ahead = set(outputs)
    for k in reversed(range(len(nodes))):
        if not behind[k] and op_of(nodes[k]) in _LEADING and ahead.isdisjoint(nodes[k].output):
            later = [node for node, late in zip(nodes, behind, strict=True) if late]
            behind[k] = any(name in node.input for node in later for name in nodes[k].output)
        if not behind[k]:
            ahead.update(nodes[k].input)
    return behind


@dataclass(frozen=True)
class _Picked:
    """Two rankings: `first` of the entries of `source` by the best of their values in `scores`, and
    `second` of these values of the entries that the first one took.
    """

    tensors: Mapping[str, TensorInfo]
    constants: Arrays
    maker: Mapping[str, NodeProto]
    source: str
    first: NodeProto
    second: NodeProto
    scores: Span

    @classmethod
    def of(
        cls,
        nodes: Sequence[NodeProto],
        tensors: Mapping[str, TensorInfo],
        constants: Arrays,
        source: str,
    ) -> "_Picked | None":
        """What these nodes pick from the source; None if it is not that."""
        shape = tensors[source].shape
        rankings = [node for node in nodes if op_of(node) == "TopK"]
        if len(shape) != 3 or shape[0] != 1 or len(rankings) != 2:
            return None
        maker = {name: node for node in nodes for name in node.output if name}
        nothing = Span(0, 0)
        found = cls(tensors, constants, maker, source, rankings[0], rankings[1], nothing)
        best = maker.get(found.plain(rankings[0].input[0]))
        if best is None or op_of(best) != "ReduceMax" or not found.ranks_all():
            return None
        scores = found.part(best.input[0])
        is_by_entry = tensors[best.output[0]].shape in (shape[:VALUES], (*shape[:VALUES], 1))
        ranked = found.gathered(rankings[1].input[0], found.is_first)
        if scores is None or not is_by_entry or ranked != best.input[0]:
            return None
        return replace(found, scores=scores)

    def ranks_all(self) -> bool:
        """Whether both rankings are of all elements, and take the largest in order."""
        for node in (self.first, self.second):
            given, shape = attributes_of(node), self.tensors[node.input[0]].shape
            along = int(given.get("axis", -1)) % len(shape)
            if shape[along] != np.prod(shape) or not given.get("largest", 1):
                return False
            if not given.get("sorted", 1):
                return False
        return True

    def column(self, output: str) -> int | None:
        """Where in a row of the output its score is; None if rows have anything but that, values of
        its entry, and what follows from its position.
        """
        node = self.maker[output]
        if op_of(node) != "Concat" or joined_axis(node, len(self.tensors[output].shape)) != VALUES:
            return None
        column, place = None, 0
        for name in node.input:
            size = self.tensors[name].shape[VALUES]
            if self.plain(name) == self.second.output[0] and size == 1:
                column = place
            elif not self._is_of_the_entry(name) and not self._is_of_the_position(name):
                return None
            place += size
        return column

    def _is_of_the_entry(self, name: str) -> bool:
        """Whether a tensor has values of each row's entry: taken from the source, or of those that
        the first ranking took.
        """
        if self.gathered(name, self._is_final) is not None:
            return True
        node = self._gather(name)
        return (
            node is not None
            and self._is_by_pair(node.input[1])
            and self.gathered(node.input[0], self.is_first) is not None
        )

    def _is_of_the_position(self, name: str) -> bool:
        """Whether a tensor depends on the positions of the second ranking alone."""
        ahead = [name]
        while ahead:
            name = ahead.pop()
            if name in self.constants or name == self.second.output[1]:
                continue
            if name not in self.maker or self.maker[name] in (self.first, self.second):
                return False
            ahead += self.maker[name].input
        return True

    def gathered(self, name: str, is_entry: Callable[[str], bool]) -> str | None:
        """The part of the source of which a tensor has, for certain entries, the values; None if it
        has something else.
        """
        node = self._gather(name)
        if node is None or not is_entry(node.input[1]) or self.part(node.input[0]) is None:
            return None
        return str(node.input[0])

    def is_first(self, name: str) -> bool:
        """Whether these are the entries that the first ranking took."""
        return self._repeated(name) == self.first.output[1]

    def _is_final(self, name: str) -> bool:
        """Whether these are the entries of the scores that the second ranking took."""
        node = self._gather(self._repeated(name))
        return node is not None and self.is_first(node.input[0]) and self._is_by_pair(node.input[1])

    def _is_by_pair(self, name: str) -> bool:
        """Whether these are the places among the first ranking's entries of what the second one
        took: its positions, divided by the number of scores of an entry.
        """
        node = self.maker.get(self._repeated(name))
        if node is None or op_of(node) != "Div" or node.input[0] != self.second.output[1]:
            return False
        count = (
            self.tensors[self.second.input[0]].shape[-1]
            // self.tensors[self.first.output[0]].shape[-1]
        )
        return bool(np.all(self.constants.get(node.input[1], np.zeros(1)) == count))

    def _gather(self, name: str) -> NodeProto | None:
        """The node that gathers entries into this tensor."""
        node = self.maker.get(self.plain(name))
        if node is None or op_of(node) != "GatherElements":
            return None
        rank = len(self.tensors[node.input[0]].shape)
        return node if int(attributes_of(node).get("axis", 0)) % rank == ENTRIES else None

    def plain(self, name: str) -> str:
        """The tensor whose elements these are, in the same order."""
        return self._behind(name, _RESHAPING)

    def _repeated(self, name: str) -> str:
        """The tensor of whole numbers that these are, one of them for each value."""
        return self._behind(name, _REPEATING)

    def _behind(self, name: str, operators: frozenset[str]) -> str:
        while (node := self.maker.get(name)) is not None and op_of(node) in operators:
            name = node.input[0]
        return name

    def part(self, name: str) -> Span | None:
        """Which values of the source's entries a tensor has, if it has them for all entries."""
        if name == self.source:
            return Span(0, self.tensors[name].shape[VALUES])
        node = self.maker.get(name)
        if node is None or node.input[0] != self.source:
            return None
        if op_of(node) == "Slice":
            cut = slice_of(node, self.tensors, self.constants)
            return Span(cut.start, cut.stop) if cut and cut.axis == VALUES else None
        if op_of(node) != "Split" or int(attributes_of(node).get("axis", 0)) % 3 != VALUES:
            return None
        sizes = [self.tensors[name].shape[VALUES] for name in node.output]
        place = list(node.output).index(name)
        return Span(sum(sizes[:place]), sum(sizes[: place + 1]))
