"""From a plan to its tasks: programs cut, and who needs which box from whom.

A `TaskGraph` is made once per plan and shared by all of its requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from coordinator.planning.plan import Block, DeviceId, Plan, Tile
from models.boxes import Box
from models.cutter import cut
from models.graph import Graph, TensorInfo
from models.program import BlobSource, Program
from models.units import Network


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a task's input, and the task that makes it; None: the request brought it."""

    source: int | None
    box: Box


@dataclass(frozen=True, slots=True)
class TaskInput:
    """A box that a task reads, and the disjoint pieces that it comes in."""

    tensor: str
    box: Box
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """A box that a task owns of what its program yields; `reduce`: the host adds it up."""

    tensor: str
    box: Box
    yields: Box
    reduce: bool = False


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One run of a program on one device, as planned.

    With `barrier` it starts only when every task of the earlier blocks is merged.
    """

    id: int
    block: int
    device: DeviceId
    program: str
    inputs: tuple[TaskInput, ...]
    outputs: tuple[TaskOutput, ...]
    barrier: bool

    @property
    def input_bytes(self) -> int:
        """Elements of its inputs (payload before the element size)."""
        return sum(each.box.volume for each in self.inputs)


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """Everything that a request needs of its plan."""

    plan: Plan
    tasks: tuple[TaskSpec, ...]
    programs: Mapping[str, Program] = field(repr=False)
    blobs: BlobSource = field(repr=False)
    tensors: Mapping[str, TensorInfo]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def programs_of(self, device: DeviceId) -> list[Program]:
        """Programs that a device runs in this plan."""
        names = {task.program: None for task in self.tasks if task.device == device}
        return [self.programs[name] for name in names]

    @cached_property
    def readers(self) -> Mapping[tuple[int | None, str], tuple[int, ...]]:
        """Tasks that read a tensor made by a task (None: brought by the request)."""
        found: dict[tuple[int | None, str], list[int]] = {}
        for task in self.tasks:
            for each in task.inputs:
                for piece in each.pieces:
                    readers = found.setdefault((piece.source, each.tensor), [])
                    if task.id not in readers:
                        readers.append(task.id)
        return {key: tuple(ids) for key, ids in found.items()}


def compile_plan(plan: Plan, network: Network, blobs: BlobSource) -> TaskGraph:
    """Cuts every tile of a legal plan into its task."""
    compiler = _Compiler(network, blobs)
    for index, block in enumerate(plan.blocks):
        compiler.add_block(index, block)
    graph = network.graph
    names = {each.tensor for task in compiler.tasks for each in task.inputs}
    names |= {each.tensor for task in compiler.tasks for each in task.outputs}
    return TaskGraph(
        plan=plan,
        tasks=tuple(compiler.tasks),
        programs=compiler.programs,
        blobs=blobs,
        tensors={name: graph.tensors[name] for name in names},
        inputs=graph.inputs,
        outputs=graph.outputs,
    )


class _Compiler:
    """Keeps who makes which box while blocks are added in order."""

    def __init__(self, network: Network, blobs: BlobSource) -> None:
        self.network = network
        self.graph: Graph = network.graph
        self.blobs = blobs
        self.tasks: list[TaskSpec] = []
        self.programs: dict[str, Program] = {}
        self._made: dict[str, list[Piece]] = {
            name: [Piece(None, Box.whole(self.graph.shape(name)))] for name in self.graph.inputs
        }

    def add_block(self, index: int, block: Block) -> None:
        """Adds a block's tasks; then what they own becomes available to later blocks."""
        first = len(self.tasks)
        for tile in block.tiles:
            self._add_tile(index, block, tile)
        for task in self.tasks[first:]:
            for output in task.outputs:
                self._made.setdefault(output.tensor, []).append(Piece(task.id, output.box))

    def _add_tile(self, index: int, block: Block, tile: Tile) -> None:
        nodes = self.network.nodes(block.start, block.stop)
        piece = cut(self.graph, nodes, tile.boxes, self.blobs)
        program = piece.program
        self.programs.setdefault(program.sha256, program)
        self.tasks.append(
            TaskSpec(
                id=len(self.tasks),
                block=index,
                device=tile.device,
                program=program.sha256,
                inputs=tuple(self._input(name, box) for name, box in piece.inputs.items()),
                outputs=tuple(
                    TaskOutput(name, box, piece.yields[name], tile.reduce)
                    for name, box in tile.boxes.items()
                ),
                barrier=block.barrier,
            )
        )

    def _input(self, tensor: str, box: Box) -> TaskInput:
        parts = (Piece(made.source, made.box.intersect(box)) for made in self._made[tensor])
        return TaskInput(tensor, box, tuple(part for part in parts if not part.box.is_empty))
