"""`imbrex check`: cut a model, run all tiles here, compare with the whole model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Literal

import numpy as np
import onnx
from onnx import ModelProto

from models.check.agreement import (
    Judgement,
    both_answers,
    entering,
    given,
    in_double,
    reference,
    with_own,
)
from models.check.tolerance import PLAIN, step_of, tolerance
from models.cut.program import BlobSource
from models.cut.tiles import grid, tile_boxes, whole_map
from models.cut.units import Network, Unit
from models.graph.graph import ROWS, Graph, Node
from models.operators import Kind, operator, splits_along
from models.operators.tail import BODY
from models.operators.work import NodeWork, tile_works
from models.run.double import answer_in_double
from models.run.reference import EQUAL, Comparison, ProgramRunner, compare, random_inputs
from models.run.run_tiles import Planted, TileFault, TileRun, pieces
from models.tensors.arrays import Arrays
from models.vision.pixels import as_values

Blocking = Sequence[tuple[int, int]]
CheckVerdict = Literal["ok", "different", "cannot judge"]
TOLERANCE = PLAIN
# How many times the tolerance the fault is that every check has to notice.
FAULT = 10.0
# Maps inside the network that are compared where its outputs don't show that fault.
_MOST_INSIDE = 16
# Beyond this several threads pay.
_FLOP_OF_ONE_THREAD = 1e9
# What float64 takes a minute for.
_MOST_FLOP_IN_DOUBLE = 300e9


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
    value: more than usual where onnxruntime differs from itself (`noise`) or is farther from the
    answer in float64 than that. `noticed`: a fault of ten times as much in one tile is seen.
    `inside`: so many maps inside the network were compared, as its outputs show no such fault.
    """

    model: str
    grid: tuple[int, int]
    blocks: int
    partitioned_flop_share: float
    judgement: Judgement
    refusals: tuple[UnsplitLayer, ...]
    tolerance: float = TOLERANCE
    noise: float = 0.0
    noticed: bool = True
    inside: int = 0

    @property
    def comparison(self) -> Comparison:
        """The largest errors of the split answer."""
        return self.judgement.comparison

    @property
    def verdict(self) -> CheckVerdict:
        """Whether the split answer agrees with the whole model's, as far as that can be seen."""
        if self.judgement.excess > 1.0:
            return "different"
        return "ok" if self.noticed else "cannot judge"

    @property
    def ok(self) -> bool:
        """Whether the split answer agrees, and would be seen if it did not."""
        return self.verdict == "ok"

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
                {"layer": refusal.layer, "op": refusal.op, "reason": refusal.reason}
                for refusal in self.refusals
            ],
            "verdict": self.verdict,
            "maps_inside": self.inside,
            "ok": self.ok,
        }


def check(  # noqa: PLR0913 - options of one command
    model: ModelProto,
    network: Network,
    grid_shape: tuple[int, int],
    planned: Blocking,
    *,
    feeds: Arrays | None = None,
    fault: TileFault = lambda feeds: feeds,
    plants: bool = False,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> CheckReport:
    """Cuts `network` three ways, runs every tile, and compares with the whole `model`.

    The three blockings: every unit alone, the `planned` one, and everything splittable fused.
    `fault` may damage a tile's inputs. With `plants` the check proves that it can fail: it runs
    once more with a fault in one tile.
    """
    feeds = random_inputs(network.graph) if feeds is None else feeds
    progress("whole model", 0.0)
    total_flop = sum(work.flop for _, works in _works(network) for work in works)
    threads = 1 if total_flop <= _FLOP_OF_ONE_THREAD else 0
    double = total_flop <= _MOST_FLOP_IN_DOUBLE
    judge = _Judge(model, network.graph, as_values(network.graph, feeds), threads, double)
    split = _Split(network, feeds, fault, grid_shape, threads)
    alone = [(i, i + 1) for i in range(len(network.units))]
    worst = Judgement()
    for label, blocking in (
        ("every unit alone", alone),
        ("planned blocks", planned),
        ("one fused block", fused(network)),
    ):
        worst = worst.worse(judge.of(split.run(blocking, partial(progress, label))))
    noticed, inside = True, 0
    if plants and worst.excess <= 1.0:
        planted = _fault(FAULT * max(judge.tolerance, step_of(network.graph)))
        planting = partial(progress, "a planted fault")
        spoilt = split.run(fused(network), planting, planted)
        noticed = judge.of(spoilt).excess > 1.0
        if not noticed:
            clean = split.run(alone, partial(progress, "maps inside"))
            spoilt = split.run(alone, planting, planted)
            judgement, noticed, inside = judge.inside(clean, spoilt)
            worst = worst.worse(judgement)
    return CheckReport(
        model=network.name,
        grid=grid_shape,
        blocks=len(planned),
        partitioned_flop_share=partitioned_flop_share(network),
        judgement=worst,
        refusals=refusals(network),
        tolerance=judge.tolerance,
        noise=judge.noise,
        noticed=noticed,
        inside=inside,
    )


def _fault(share: float) -> Planted:
    """Shifts the larger half of a tile's values, which neither a mean nor a normalisation hides, by
    this share of the largest.
    """

    def planted(own: np.ndarray) -> np.ndarray:
        sizes = np.abs(own[np.isfinite(own)].astype(np.float64))
        if not sizes.size or own.dtype.kind not in "fiu":
            return own
        values = own.astype(np.float64)
        chosen = np.isfinite(values) & (np.abs(values) >= np.median(sizes))
        if own.dtype.kind == "f":
            by = share * (float(sizes.max()) or 1.0)
            return np.where(chosen, values + by, values).astype(own.dtype)
        span = np.iinfo(own.dtype)
        by = max(1.0, np.rint(share * (float(span.max) - float(span.min))))
        shifted = np.where(values + by > span.max, values - by, values + by)
        return np.where(chosen, shifted, values).astype(own.dtype)

    return planted


class _Split:
    """Runs of a network in tiles."""

    def __init__(
        self,
        network: Network,
        feeds: Arrays,
        fault: TileFault,
        grid_shape: tuple[int, int],
        threads: int,
    ) -> None:
        self._network, self._feeds, self._fault = network, feeds, fault
        self._grid, self._threads = grid_shape, threads
        self._blobs = BlobSource()

    def run(
        self, blocking: Blocking, progress: Callable[[float], None], planted: Planted | None = None
    ) -> TileRun:
        """One pass; with a fault in one tile of the first block that has several, or a single one
        that is whole. `progress` hears the share of the blocks that is done.
        """
        network = self._network
        run = TileRun(network, self._blobs, self._feeds, self._fault, self._threads)
        divided = [k for k, block in enumerate(blocking) if network.is_divisible(*block)]
        spoilt = divided[0] if divided else 0
        for index, (start, stop) in enumerate(blocking):
            progress(index / len(blocking))
            tiles = grid(network, start, stop, *self._grid)
            run.block(start, stop, tiles, planted if index == spoilt else None)
        return run


class _Judge:
    """Judges runs by what onnxruntime makes of the whole model, and where the two differ, by what
    float64 makes of it. What enters a ranking is judged by itself (`ties`). `tolerance` and `noise`
    are the largest so far.
    """

    def __init__(
        self, model: ModelProto, graph: Graph, values: Arrays, threads: int, fits_double: bool
    ) -> None:
        self._model, self._graph, self._values = model, graph, values
        self._threads, self._fits_double = threads, fits_double
        self._ranked = entering(model, graph)
        self._answers = both_answers(model, values, threads)
        self._exact: dict[str, np.ndarray] | None = None
        self.tolerance = tolerance(graph)
        self.noise = 0.0

    def of(self, run: TileRun) -> Judgement:
        """How far a run's answer is off."""
        model, feeds, answer = self._model, self._values, run.answer()
        ranked = [name for name in self._ranked if name in run.tensors]
        if ranked:
            model = given(model, self._graph, ranked)
            feeds = {**feeds, **{name: run.tensors[name] for name in ranked}}
            answer = with_own(answer, run.tensors, ranked)
        answers = both_answers(model, feeds, self._threads) if ranked else self._answers
        right = reference(answers, self._graph)
        judgement, allowed = right.judge(answer), right.widest
        if judgement.excess > 1.0 and (exact := self._in_double(model, feeds, ranked)) is not None:
            other, widest = in_double(exact, answers, self._graph, answer)
            if other.excess < judgement.excess:
                judgement, allowed = other, widest
        if judgement.excess <= 1.0:
            self.tolerance = max(self.tolerance, allowed)
            self.noise = max(self.noise, right.noise)
        return judgement

    def _in_double(
        self, model: ModelProto, feeds: Arrays, ranked: Sequence[str]
    ) -> dict[str, np.ndarray] | None:
        if not self._fits_double:
            return None
        if ranked:
            return answer_in_double(model, feeds)
        if self._exact is None:
            self._exact = answer_in_double(model, feeds) or {}
        return self._exact or None

    def inside(self, clean: TileRun, spoilt: TileRun) -> tuple[Judgement, bool, int]:
        """How far maps inside the network are off in one run, whether the fault of another is seen
        there, and how many were compared: such as the model itself makes, and onnxruntime makes
        within the tolerance each time.
        """
        made = {name for node in self._model.graph.node for name in node.output}
        public = {value.name for value in self._model.graph.output}
        names = [
            name
            for name, array in clean.tensors.items()
            if name in made - public and array.dtype.kind == "f" and array.size
        ]
        names = names[:: max(1, len(names) // _MOST_INSIDE)][:_MOST_INSIDE]
        model = ModelProto()
        model.CopyFrom(self._model)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        whole, again = both_answers(model, self._values, self._threads)
        limit = tolerance(self._graph)

        def error(name: str, array: np.ndarray) -> Comparison:
            return compare({name: array}, {name: whole[name]})

        shown = [name for name in names if error(name, again[name]).max_rel_error <= limit]
        off = [error(name, clean.tensors[name]) for name in shown]
        worst = reduce(Comparison.worse, off, EQUAL)
        seen = [error(name, spoilt.tensors[name]).max_rel_error > limit for name in shown]
        return Judgement(worst, worst.max_rel_error / limit), any(seen), len(shown)


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


def _split_share(network: Network, amount: Callable[[NodeWork], float]) -> float:
    total = split = 0.0
    for unit, works in _works(network):
        amounts = sum(map(amount, works))
        total += amounts
        split += amounts if unit.splits else 0
    return split / total if total else 0.0


def _works(network: Network) -> Iterator[tuple[Unit, Sequence[NodeWork]]]:
    """The work of the nodes of every unit, whole."""
    for index, unit in enumerate(network.units):
        boxes = tile_boxes(network, index, index + 1, whole_map(network, index, index + 1))
        yield unit, tile_works(network.graph, unit.nodes, boxes)
