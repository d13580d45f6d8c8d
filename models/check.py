"""`imbrex check`: cut a model, run all tiles here, compare with the whole model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from models.agreement import Judgement, reference_of
from models.graph import ROWS, Graph, Node
from models.operators import Kind, operator, splits_along
from models.operators.tail import BODY
from models.pixels import as_values
from models.program import BlobSource
from models.reference import Comparison, ProgramRunner, random_inputs
from models.run_tiles import TileFault, TileRun, pieces
from models.ties import judged_ahead
from models.tiles import grid, tile_boxes, whole_map
from models.tolerance import PLAIN
from models.units import Network
from models.work import Work, tile_works

Blocking = Sequence[tuple[int, int]]
TOLERANCE = PLAIN


@dataclass(frozen=True, slots=True)
class UnsplitLayer:
    """A layer that is not split, and why."""

    layer: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Outcome of a check; `blocks` counts the blocks of the planner-like blocking. `tolerance` is
    the largest error with which it is ok, relative to the largest magnitude of the same kind of
    value; where onnxruntime differs from itself by more (`noise`), a multiple of that, or in a
    quantised network, from either of its answers.
    """

    model: str
    grid: tuple[int, int]
    blocks: int
    partitioned_flop_share: float
    judgement: Judgement
    refusals: tuple[UnsplitLayer, ...]
    tolerance: float = TOLERANCE
    noise: float = 0.0

    @property
    def comparison(self) -> Comparison:
        """The largest errors of the split answer."""
        return self.judgement.comparison

    @property
    def ok(self) -> bool:
        """Whether the split answer agrees with the whole model's."""
        return self.judgement.excess <= 1.0

    def as_json(self) -> dict[str, object]:
        """The outcome as documented JSON."""
        return {
            "model": self.model,
            "grid": f"{self.grid[0]}x{self.grid[1]}",
            "blocks": self.blocks,
            "partitioned_flop_share": round(self.partitioned_flop_share, 6),
            "max_abs_error": self.comparison.max_abs_error,
            "max_rel_error": self.comparison.max_rel_error,
            "tolerance": self.tolerance,
            "noise": self.noise,
            "refusals": [
                {"layer": each.layer, "op": each.op, "reason": each.reason}
                for each in self.refusals
            ],
            "ok": self.ok,
        }


def check(
    model: onnx.ModelProto,
    network: Network,
    grid_shape: tuple[int, int],
    planned: Blocking,
    *,
    feeds: Mapping[str, np.ndarray] | None = None,
    fault: TileFault = lambda feeds: feeds,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> CheckReport:
    """Cuts `network` three ways, runs every tile, and compares with the whole `model`.

    The three blockings: every unit alone, the `planned` one, and everything splittable fused.
    `fault` may damage a tile's inputs: a check that can't fail proves nothing.
    """
    feeds = random_inputs(network.graph) if feeds is None else feeds
    progress("whole model", 0.0)
    values = as_values(network.graph, feeds)
    truth = reference_of(model, network.graph, values)
    alone = [(i, i + 1) for i in range(len(network.units))]
    worst = Judgement()
    blobs = BlobSource()
    for label, blocking in (
        ("every unit alone", alone),
        ("planned blocks", planned),
        ("one fused block", fused(network)),
    ):
        run = TileRun(network, blobs, feeds, fault)
        for index, (start, stop) in enumerate(blocking):
            progress(label, index / len(blocking))
            run.block(start, stop, grid(network, start, stop, *grid_shape))
        judgement = truth.judge(answer := run.answer())
        if judgement.excess > 1.0:
            judgement = judged_ahead(model, network.graph, values, run.tensors, answer) or judgement
        worst = worst.worse(judgement)
    return CheckReport(
        model=network.name,
        grid=grid_shape,
        blocks=len(planned),
        partitioned_flop_share=partitioned_flop_share(network),
        judgement=worst,
        refusals=refusals(network),
        tolerance=truth.limit,
        noise=truth.noise,
    )


def fused(network: Network) -> Blocking:
    """The blocking with every run of divisible units in one block."""
    blocks: list[tuple[int, int]] = []
    for index, unit in enumerate(network.units):
        if blocks and unit.is_divisible and network.units[index - 1].is_divisible:
            blocks[-1] = (blocks[-1][0], index + 1)
        else:
            blocks.append((index, index + 1))
    return blocks


def require_programs(network: Network) -> None:
    """Makes the programs of a network in two tiles, without running them.

    Raises:
        BadRequest: onnxruntime refuses one of them; the node is named.
    """
    blobs = BlobSource()
    for start, stop in fused(network):
        runner = ProgramRunner(blobs, threads=1)
        for piece, _ in pieces(network, start, stop, grid(network, start, stop, 2, 1), blobs):
            runner.session(piece.program)


def refusals(network: Network) -> tuple[UnsplitLayer, ...]:
    """Every node that keeps its unit whole, with the reason."""
    graph = network.graph
    return tuple(
        UnsplitLayer(node.name, node.op, _reason(graph, node))
        for unit in network.units
        if not unit.splits
        for node in unit.nodes
        if not splits_along(graph, node, ROWS) and operator(node).kind is not Kind.POINTWISE
    )


def _reason(graph: Graph, node: Node) -> str:
    why = node.refusal or (BODY in node.attributes and node.proto.doc_string)
    if why:
        return f"{why}, so it runs whole on one device"
    match operator(node).kind:
        case Kind.OPAQUE:
            return f"{node.op} needs all of its input, so it runs whole on one device"
        case Kind.REDUCING:
            return f"{node.op} reduces the remaining rows to one value per channel"
        case Kind.MIXING:
            return f"{node.op} mixes all inputs into every output"
    if graph.size(node.outputs[0], ROWS) > 1:
        return f"{node.op} needs all rows for any part of its output"
    return f"the output of {node.op} has a single row"


def partitioned_flop_share(network: Network) -> float:
    """Share of all FLOPs that run split."""
    return _split_share(network, lambda work: work.flop)


def partitioned_time_share(network: Network) -> float:
    """Share of the time that runs split, where FLOPs take as long as those of a convolution, and
    nodes that were timed as long as they took.
    """
    return _split_share(network, lambda work: work.paced_flop)


def _split_share(network: Network, amount: Callable[[Work], float]) -> float:
    total = split = 0.0
    for index, unit in enumerate(network.units):
        boxes = tile_boxes(network, index, index + 1, whole_map(network, index, index + 1))
        found = sum(map(amount, tile_works(network.graph, unit.nodes, boxes)))
        total += found
        split += found if unit.splits else 0
    return split / total if total else 0.0
