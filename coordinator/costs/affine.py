"""The form of all cost models: affine in the size of the tile.

A node's seconds are a fixed part plus a rate for each quantity of its `NodeWork`. The rates may
depend on what tiling does not change (layer type, kernel, groups, channels), never on rows or
columns.
Planners use this to cost all ranges of rows at once [Eq. 1 and 3 over arrays]; `block_s` is the
definition.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from models.operators.work import NodeWork
from models.tensors.memory import LARGEST_MATRIX_BYTES


@dataclass(frozen=True, slots=True)
class LayerRates:
    """Seconds of one node: `fixed_s`, plus seconds per FLOP and per byte read, written and of
    weights.
    """

    fixed_s: float = 0.0
    flop_s: float = 0.0
    input_byte_s: float = 0.0
    output_byte_s: float = 0.0
    weight_byte_s: float = 0.0

    def seconds(self, work: NodeWork) -> float:
        """Seconds of the node for this tile."""
        return (
            self.fixed_s
            + self.flop_s * work.flop
            + self.input_byte_s * work.input_bytes
            + self.output_byte_s * work.output_bytes
            + self.weight_byte_s * work.weight_bytes
        )

    def scaled(self, factor: float) -> "LayerRates":
        """The same rates on a device that takes `factor` times as long."""
        return LayerRates(
            self.fixed_s * factor,
            self.flop_s * factor,
            self.input_byte_s * factor,
            self.output_byte_s * factor,
            self.weight_byte_s * factor,
        )


class Costs(ABC):
    """Predicts computation on one device, which runs each program with the fastest of its
    engines.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def engines(self) -> "tuple[EngineCosts, ...]":
        """The costs of each engine, at least one; the first is the one that computes everything."""

    def fastest(self, works: Sequence[NodeWork]) -> "EngineCosts":
        """The engine that runs these nodes as one program soonest; the first of equals."""
        return min(self.engines, key=lambda engine: engine.program_s(works))

    def block_s(self, works: Sequence[NodeWork]) -> float:
        """Seconds to run these nodes as one program."""
        return min(engine.program_s(works) for engine in self.engines)


# Of what an engine does not compute.
NEVER = LayerRates(fixed_s=math.inf)


def is_too_large(work: NodeWork, engine: str) -> bool:
    """Whether this is a product with a matrix that the engine leaves to onnxruntime."""
    return work.is_product and work.weight_bytes > LARGEST_MATRIX_BYTES.get(engine, math.inf)


class EngineCosts(ABC):
    """Predicts computation by the engine of this name: `program_s` from `task_s` and
    `layer_rates`.
    """

    __slots__ = ()

    engine: str

    @property
    def task_s(self) -> float:
        """Fixed seconds of any run of a program."""
        return 0.0

    @abstractmethod
    def layer_rates(self, work: NodeWork) -> LayerRates:
        """Rates of a node; equal for all of its tiles with the same channels."""

    def program_s(self, works: Sequence[NodeWork]) -> float:
        """Seconds to run these nodes as one program: task_s + sum over nodes of their rates."""
        return self.task_s + sum(self.layer_rates(work).seconds(work) for work in works)
