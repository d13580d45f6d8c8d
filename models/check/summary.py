"""A summary of a network: its units, the boundaries between them, and their costs."""

from dataclasses import dataclass
from typing import Any

from models.check.check import (
    UnsplitLayer,
    partitioned_flop_share,
    partitioned_time_share,
    refusals,
)
from models.cut.units import Network, Unit
from models.graph.shapes import TensorInfo
from models.operators.work import tile_works
from models.run.timed import of_unknown_work
from models.tensors.boxes import Box

LARGEST = 5


@dataclass(frozen=True, slots=True)
class Activation:
    """The output tensor of a node."""

    name: str
    shape: tuple[int, ...]
    nbytes: int

    def as_json(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return {"tensor": self.name, "shape": list(self.shape), "bytes": self.nbytes}


@dataclass(frozen=True, slots=True)
class UnitSummary:
    """One unit, with the tensors that cross the boundary after it; `reason` says why it runs whole
    (empty if it is split). `bypass`: a shortcut crosses that boundary.
    """

    name: str
    operators: tuple[str, ...]
    flop: int
    weight_bytes: int
    output: Activation
    reason: str
    live: tuple[str, ...]
    live_bytes: int
    bypass: bool

    def as_json(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return {
            "name": self.name,
            "operators": list(self.operators),
            "flop": self.flop,
            "weight_bytes": self.weight_bytes,
            "output": self.output.as_json(),
            "splits": not self.reason,
            "reason": self.reason,
            "boundary": {
                "tensors": list(self.live),
                "bytes": self.live_bytes,
                "bypass": self.bypass,
            },
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """A network in numbers. FLOPs count 2 per multiply-add; where there is no formula, they are
    those of a convolution that takes as long. `unknown`: nodes that run whole and could not be run
    alone, which count one for each element that they make.
    """

    units: tuple[UnitSummary, ...]
    flop: int
    weight_bytes: int
    partitioned_flop_share: float
    partitioned_time_share: float
    unknown: tuple[str, ...]
    refusals: tuple[UnsplitLayer, ...]
    largest: tuple[Activation, ...]


def summarise(network: Network) -> Summary:
    """The summary of a network."""
    graph = network.graph
    refused = refusals(network)
    reasons = {refusal.layer: refusal.reason for refusal in refused}
    units = tuple(
        _unit(network, unit, index, reasons) for index, unit in enumerate(network.units, start=1)
    )
    made = [_activation(name, graph.tensors[name]) for name in graph.producer]
    return Summary(
        units=units,
        flop=sum(unit.flop for unit in units),
        weight_bytes=sum(array.nbytes for array in graph.constants.values()),
        partitioned_flop_share=partitioned_flop_share(network),
        partitioned_time_share=partitioned_time_share(network),
        unknown=tuple(node.name for node in of_unknown_work(graph)),
        refusals=refused,
        largest=tuple(sorted(made, key=lambda tensor: -tensor.nbytes)[:LARGEST]),
    )


def _unit(network: Network, unit: Unit, behind: int, reasons: dict[str, str]) -> UnitSummary:
    graph, boundary = network.graph, network.boundaries[behind]
    whole = {name: Box.whole(graph.shape(name)) for name in unit.outputs}
    why = [reasons[node.name] for node in unit.nodes if node.name in reasons]
    main = unit.outputs[-1]
    weights = {name for node in unit.nodes for name in node.inputs if name in graph.constants}
    return UnitSummary(
        name=unit.name,
        operators=tuple(node.op for node in unit.nodes),
        flop=sum(work.flop for work in tile_works(graph, unit.nodes, whole)),
        weight_bytes=sum(graph.constants[name].nbytes for name in weights),
        output=_activation(main, graph.tensors[main]),
        reason="" if unit.splits else (why or ["it is too small to be split"])[0],
        live=boundary.live,
        live_bytes=sum(graph.tensors[name].nbytes for name in boundary.live),
        bypass=boundary.bypass,
    )


def _activation(name: str, info: TensorInfo) -> Activation:
    return Activation(name, info.shape, info.nbytes)
