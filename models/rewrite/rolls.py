"""A Concat of a tensor's last rows and its first becomes one node; see `models.operators.layout`.

If something is done to either part before they are joined, as quantising it, the parts are taken of
the rolled tensor instead: there they lie in the order in which they are joined.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from onnx import NodeProto, helper

from models.graph.graph import ROWS
from models.graph.shapes import TensorInfo
from models.operators import LINEAR
from models.operators.arrange import DOMAIN
from models.operators.layout import ROLL_OP
from models.operators.pointwise import BROADCASTING
from models.rewrite.draft import Draft, Slice, attributes_of, joined_axis, op_of, slice_of

# The operands of a node that joins two tensors, by place; and how many inputs it then has.
_JOINING = {"Concat": ((0, 1), 2), "com.microsoft.QLinearConcat": ((2, 5), 8)}
# At most so many operators between a part and where it is joined.
_FOLLOWED = 16


class _Part(NamedTuple):
    """A Slice's output; `last` is what is joined: itself, or what is made of it. `wide` is the node
    that dequantises the tensor of which it is taken, which is none of its own then.
    """

    made: str
    last: str
    source: str
    taken: Slice
    wide: NodeProto | None

    @property
    def origin(self) -> tuple[str, ...]:
        """The same for parts of the same values."""
        return tuple(self.wide.input) if self.wide else (self.source,)


class _Roll(NamedTuple):
    """The last and the first rows of a tensor, joined along an axis."""

    joined: str
    axis: int
    parts: tuple[_Part, _Part]

    @property
    def is_plain(self) -> bool:
        """Whether nothing is done to the parts."""
        return all(part.wide is None and part.last == part.made for part in self.parts)


def rolled(
    nodes: Sequence[NodeProto], draft: Draft, tensors: dict[str, TensorInfo], rows: dict[str, int]
) -> list[NodeProto]:
    """The nodes with each such Concat as one; adds the tensors that are new to `tensors` and, if
    need be, to `rows`. Writes them, and new constants, to `draft`.
    """
    search = _Search({node.output[0]: node for node in nodes}, draft, rows)
    rolls = [roll for roll in map(search.roll, nodes) if roll is not None]
    whole = {roll.joined: roll for roll in rolls if roll.is_plain}
    taken = {
        part.made: (roll, place)
        for roll in rolls
        if not roll.is_plain
        for place, part in enumerate(roll.parts)
    }
    writing = _Writing(draft, tensors, rows)
    for node in nodes:
        made = node.output[0]
        if made in whole:
            writing.roll(whole[made], made, node.name or made)
        elif made in taken:
            writing.part(*taken[made])
        else:
            draft.nodes.append(node)
    read = {name for node in draft.nodes for name in node.input} | draft.outputs
    return [node for node in draft.nodes if read.intersection(node.output)]


@dataclass(frozen=True, slots=True)
class _Search:
    maker: Mapping[str, NodeProto]
    draft: Draft
    rows: Mapping[str, int]

    def roll(self, node: NodeProto) -> _Roll | None:
        """What a node rolls, if it rolls something."""
        places, inputs = _JOINING.get(op_of(node), ((), 0))
        if len(node.input) != inputs or not places:
            return None
        last, first = (self._part(node.input[place]) for place in places)
        if last is None or first is None or last.origin != first.origin:
            return None
        made, shape = node.output[0], self.draft.shape(last.source)
        axis = joined_axis(node, len(shape))
        fits = last.taken.axis == first.taken.axis == axis == self.rows.get(made, ROWS)
        whole = shape == self.draft.shape(made) and last.taken.stop == shape[axis]
        together = first.taken.start == 0 and first.taken.stop == last.taken.start
        if not (fits and whole and together) or self._scaled_along(last.wide, axis):
            return None
        roll = _Roll(made, axis, (last, first))
        return None if roll.is_plain and self._quantises_again(node) else roll

    def _quantises_again(self, node: NodeProto) -> bool:
        """Whether what is joined gets another scale or zero point."""
        if node.op_type == "Concat":
            return False
        given = [self.draft.constants.get(node.input[place]) for place in (0, 3, 6, 1, 4, 7)]
        known = [array for array in given if array is not None]
        same = len(known) == len(given) and _are_equal(known[:3]) and _are_equal(known[3:])
        return not same

    def _scaled_along(self, wide: NodeProto | None, axis: int) -> bool:
        """Whether rows have scales of their own, which do not move with them."""
        if wide is None:
            return False
        shape, given = self.draft.shape(wide.output[0]), attributes_of(wide)
        single = math.prod(self.draft.shape(wide.input[1])) == 1
        own = given.get("axis", 1) % max(1, len(shape)) == axis or given.get("block_size", 0)
        return bool(own) and not single

    def _part(self, joined: str) -> _Part | None:
        """The part of a tensor that a joined tensor is made of, element by element."""
        name = joined
        for _ in range(_FOLLOWED):
            node = self.maker.get(name)
            if node is None or op_of(node) not in BROADCASTING | LINEAR:
                break
            name = node.input[0]
        else:
            return None
        taken = slice_of(node, self.draft.tensors, self.draft.constants) if node else None
        if node is None or taken is None or joined not in self.draft.tensors:
            return None
        wide = self.maker.get(node.input[0])
        wide = wide if wide is not None and wide.op_type == "DequantizeLinear" else None
        return _Part(name, joined, node.input[0], taken, wide)


def _are_equal(arrays: Sequence[np.ndarray]) -> bool:
    first, *others = arrays
    return all(np.array_equal(np.ravel(first), np.ravel(other)) for other in others)


@dataclass(frozen=True, slots=True)
class _Writing:
    draft: Draft
    tensors: dict[str, TensorInfo]
    rows: dict[str, int]

    def roll(self, roll: _Roll, target: str, name: str) -> None:
        """Rolls the tensor, quantised if it is dequantised before its rows are taken."""
        source, copy = roll.parts[0].origin[0], f"{target}__again"
        self._like(source, copy, target)
        self.draft.emit("Identity", [source], copy)
        given = {"axis": roll.axis, "shift": roll.parts[0].taken.start}
        one = helper.make_node(ROLL_OP, [source, copy], [target], name, domain=DOMAIN)
        one.attribute.extend(helper.make_attribute(*item) for item in given.items())
        self.draft.nodes.append(one)

    def part(self, roll: _Roll, place: int) -> None:
        """Takes one of the parts of the rolled tensor."""
        part, target = roll.parts[place], f"{roll.joined}__rolled"
        if target not in self.tensors:
            self.roll(roll, target, target)
        if part.wide is not None:
            one = NodeProto()
            one.CopyFrom(part.wide)
            wide = f"{part.made}__wide"
            one.name, one.input[0], one.output[0] = wide, target, wide
            self._like(part.source, wide)
            self.draft.nodes.append(one)
            target = wide
        size = self.draft.shape(part.source)[roll.axis]
        shift = roll.parts[0].taken.start
        start, stop = ((0, size - shift), (size - shift, size))[place]
        self.draft.part(target, part.made, roll.axis, start, stop)

    def _like(self, source: str, *made: str) -> None:
        for name in made:
            self.tensors[name] = self.tensors[source]
            if source in self.rows:
                self.rows[name] = self.rows[source]
