"""Units that differ in nothing but names, and so read and compute the same.

Networks repeat themselves: of the 294 units of a YOLOv9t, only 109 differ from all before them.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from models.cut.units import Unit
from models.graph.graph import ROWS, Graph, Node
from models.operators import Kind, operator

# For a convolution or an elementwise node, shapes determine what a tile reads; for others (Slice,
# Resize, Gather) so do constants, unless they are so large that they must be weights.
_BY_SHAPE = frozenset({Kind.WINDOWED, Kind.POINTWISE})
_SETTING_BYTES = 4096
_INDICES = frozenset({"int32", "int64"})


@dataclass(frozen=True, slots=True, eq=False)
class UnitLikeness:
    """The first unit like this one. `here` maps its names of tensors to this unit's; `there` maps
    them back.
    """

    first: Unit
    here: Mapping[str, str]
    there: Mapping[str, str]


class Likenesses:
    """The alike units of one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._first: dict[Hashable, Unit] = {}
        self._known: dict[int, UnitLikeness] = {}

    def of(self, unit: Unit) -> UnitLikeness:
        """The first unit like this one; the unit itself if there is none before it."""
        if unit.start not in self._known:
            first = self._first.setdefault(self._traits(unit), unit)
            pairs = list(zip(_tensors(first), _tensors(unit), strict=True))
            there = {mine: theirs for theirs, mine in pairs}
            self._known[unit.start] = UnitLikeness(first, dict(pairs), there)
        return self._known[unit.start]

    def _traits(self, unit: Unit) -> Hashable:
        """Everything except names that determines what a tile of a unit reads and computes."""
        numbers = {name: number for number, name in enumerate(_tensors(unit))}
        return (
            tuple(
                (
                    node.op,
                    node.refusal,
                    tuple(
                        attribute.SerializeToString(deterministic=True)
                        for attribute in node.proto.attribute
                    ),
                    tuple(numbers[name] for name in node.inputs),
                    tuple(numbers[name] for name in node.outputs),
                    self._settings(node),
                )
                for node in unit.nodes
            ),
            tuple(numbers[name] for name in unit.outputs),
            tuple(map(self._tensor, numbers)),
        )

    def _settings(self, node: Node) -> Hashable:
        if operator(node).kind in _BY_SHAPE:
            return None
        constants = [self._graph.constants.get(name) for name in node.inputs]
        return tuple(
            constant.tobytes()
            for constant in constants
            if constant is not None
            and (constant.nbytes <= _SETTING_BYTES or constant.dtype.name in _INDICES)
        )

    def _tensor(self, name: str) -> Hashable:
        if not name:
            return None
        info = self._graph.tensors[name]
        rows = self._graph.axis(name, ROWS)
        return info.shape, info.data_type, name in self._graph.constants, rows


def _tensors(unit: Unit) -> tuple[str, ...]:
    """Everything that a unit mentions, in order."""
    return tuple(
        dict.fromkeys(name for node in unit.nodes for name in (*node.inputs, *node.outputs))
    )
