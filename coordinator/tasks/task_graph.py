"""The tasks of a plan: their programs, and which box each gets from which task.

A `TaskGraph` is made once per plan and shared by all requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from coordinator.tasks.plan import Block, Plan, tile_extent, tile_works
from coordinator.tasks.timeline import Passed, Sketch
from models.check.tolerance import PLAIN, between_devices
from models.cut.cutter import cut
from models.cut.partial import cut_partial
from models.cut.program import BlobSource, NetworkKey, Program
from models.cut.units import Network
from models.graph.ending import Ending
from models.graph.graph import JoinedOutput, results_of
from models.graph.shapes import TensorInfo
from models.operators.work import NodeWork
from models.tensors.boxes import Box
from models.tensors.selection import Selection, Selections
from protos.wire.facts import DeviceId


@dataclass(frozen=True, slots=True)
class InputPart:
    """A part of a task's input, and the task that computes it; None: it came with the request."""

    source: int | None
    box: Box


@dataclass(frozen=True, slots=True)
class TaskInput:
    """A box that a task reads, and its pieces: disjoint parts, or (`summed`) partial sums of the
    whole box, which has its values only when all of them have arrived.
    """

    tensor: str
    box: Box
    pieces: tuple[InputPart, ...]
    summed: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """A part of a task's output that goes directly to the task that reads it."""

    reader: int
    box: Box


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """A box that a task owns among its program's outputs. `to_host`: the host merges it, or
    (`reduce`) adds it to others. `routes`: the parts that peers read. If it is `dynamic` it is sent
    whole, whatever the boxes say.
    """

    tensor: str
    box: Box
    yields: Box
    reduce: bool = False
    to_host: bool = True
    routes: tuple[Route, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One run of a program on one device, as planned; `program` is empty in an outline.

    With `barrier` it starts only when all tasks of earlier blocks are merged. A `direct` task gets
    the outputs of other tasks from their devices, not from the host.
    """

    id: int
    block: int
    device: DeviceId
    program: str
    inputs: tuple[TaskInput, ...]
    outputs: tuple[TaskOutput, ...]
    barrier: bool
    direct: bool = False


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """A plan's tasks, as requests execute them. `tensors` are in wire form, `works` is the work of
    each task, `tolerance` how far two devices may differ in its results (`models.check.tolerance`).
    `whole`: the network, if its only task computes all of it, and nothing is left for an ending.
    """

    plan: Plan
    tasks: tuple[TaskSpec, ...]
    programs: Mapping[str, Program] = field(repr=False)
    blobs: BlobSource = field(repr=False)
    tensors: Mapping[str, TensorInfo]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    works: tuple[Sequence[NodeWork], ...] = field(default=(), repr=False)
    tolerance: float = PLAIN
    joined: Mapping[str, JoinedOutput] = field(default_factory=dict)
    ending: Ending | None = None
    whole: NetworkKey | None = None

    @cached_property
    def results(self) -> tuple[str, ...]:
        """What tasks have to make for the network's outputs."""
        return results_of(self.outputs, self.joined, self.ending)

    @cached_property
    def is_direct(self) -> bool:
        """Whether any task gets its input from peers."""
        return any(task.direct for task in self.tasks)

    @cached_property
    def ends(self) -> tuple[tuple[int, str], ...]:
        """Tasks and their outputs that belong to the network's results: once merged, the answer is
        complete.
        """
        return tuple(
            (task.id, output.tensor)
            for task in self.tasks
            for output in task.outputs
            if output.tensor in self.results
        )

    def selectable(self, selections: Selections) -> Selections:
        """Of selections by output those that devices can make, by result: no task reads it, and it
        is not a sum.
        """
        found: dict[str, Selection] = {}
        if self.ending is not None:
            selections = self.ending.selected(selections)
        for name, selection in selections.items():
            axis, parts = self.joined.get(name, (selection.axis, (name,)))
            if axis == selection.axis:
                found |= dict.fromkeys(parts, selection)
        return {
            name: selection for name, selection in found.items() if name not in self._used_or_summed
        }

    @cached_property
    def _used_or_summed(self) -> frozenset[str]:
        used = {entry.tensor for task in self.tasks for entry in task.inputs}
        return frozenset(
            used
            | {output.tensor for task in self.tasks for output in task.outputs if output.reduce}
        )

    def programs_of(self, device: DeviceId) -> list[Program]:
        """Programs that a device runs in this plan."""
        names = {task.program: None for task in self.tasks if task.device == device}
        return [self.programs[name] for name in names]

    @cached_property
    def sketch(self) -> Sketch:
        """What a trace needs to know of this plan."""
        passed = (passed for task in self.tasks for passed in _passed(self, task))
        return Sketch(tuple(task.block for task in self.tasks), tuple(passed))

    @cached_property
    def readers(self) -> Mapping[tuple[int | None, str], tuple[int, ...]]:
        """Tasks that read a tensor computed by a task (None: brought by the request)."""
        found: dict[tuple[int | None, str], list[int]] = {}
        for task in self.tasks:
            for entry in task.inputs:
                for piece in entry.pieces:
                    readers = found.setdefault((piece.source, entry.tensor), [])
                    if task.id not in readers:
                        readers.append(task.id)
        return {key: tuple(ids) for key, ids in found.items()}


def _passed(graph: TaskGraph, task: TaskSpec) -> Iterator[Passed]:
    """One entry per task that reads from this one: the boxes for it travel together."""
    sizes: dict[int, int] = {}
    for output in task.outputs:
        itemsize = graph.tensors[output.tensor].itemsize
        for route in output.routes:
            sizes[route.reader] = sizes.get(route.reader, 0) + route.box.volume * itemsize
    for reader, size in sizes.items():
        yield Passed(task.id, reader, size)


def outline_plan(plan: Plan, network: Network) -> TaskGraph:
    """The tasks of a plan without programs, as the simulator runs them."""
    network = network.wired(plan.wire)
    outliner = _Outliner(network)
    for index, block in enumerate(plan.blocks):
        outliner.add_block(index, block)
    graph = network.graph
    names = {entry.tensor for task in outliner.tasks for entry in task.inputs}
    names |= {output.tensor for task in outliner.tasks for output in task.outputs}
    return TaskGraph(
        plan=plan,
        tasks=tuple(routed(outliner.tasks, graph.results)),
        programs={},
        blobs=BlobSource(),
        tensors={name: graph.tensors[name].on_wire for name in names},
        inputs=graph.inputs,
        outputs=graph.outputs,
        joined=graph.joined,
        ending=graph.ending,
        works=tuple(
            tile_works(network, block, tile) for block in plan.blocks for tile in block.tiles
        ),
    )


def compile_plan(plan: Plan, network: Network, blobs: BlobSource) -> TaskGraph:
    """The tasks of a legal plan with their programs; weights are added to `blobs`."""
    network = network.wired(plan.wire)
    graph = outline_plan(plan, network)
    programs: dict[str, Program] = {}
    tasks = []
    tiles = [(block, tile) for block in plan.blocks for tile in block.tiles]
    for task, (block, tile) in zip(graph.tasks, tiles, strict=True):
        nodes = network.nodes(block.start, block.stop)
        if tile.part is not None:
            program = cut_partial(network.graph, nodes, tile.part, blobs).program
        else:
            program = cut(network.graph, nodes, tile.boxes, blobs).program
        programs.setdefault(program.sha256, program)
        tasks.append(replace(task, program=program.sha256))
    return replace(
        graph,
        tasks=tuple(tasks),
        programs=programs,
        blobs=blobs,
        tolerance=between_devices(network.graph),
        whole=NetworkKey.of(network.graph) if len(tasks) == 1 and graph.ending is None else None,
    )


def routed(tasks: Sequence[TaskSpec], network_outputs: Sequence[str]) -> Iterator[TaskSpec]:
    """Decides where every output goes: to the host, to the peers that read it, or both. What nobody
    reads, such as rows that a stride skips, stays on the device; a task whose outputs nobody reads
    reports to the host.
    """
    direct: dict[tuple[int, str], list[Route]] = {}
    through_host: set[tuple[int, str]] = set()
    for task in tasks:
        for entry in task.inputs:
            for piece in entry.pieces:
                if piece.source is None:
                    continue
                key = (piece.source, entry.tensor)
                if task.direct:
                    direct.setdefault(key, []).append(Route(task.id, piece.box))
                else:
                    through_host.add(key)
    for task in tasks:
        outputs = []
        for output in task.outputs:
            key = (task.id, output.tensor)
            wanted = key in through_host or output.tensor in network_outputs
            routes = tuple(direct.get(key, ()))
            if wanted or routes:
                outputs.append(replace(output, to_host=wanted, routes=routes))
        yield replace(task, outputs=tuple(outputs) or task.outputs)


class _Outliner:
    """Tracks which task owns which box, while blocks are added in order."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.tasks: list[TaskSpec] = []
        self._summed: set[str] = set()
        graph = network.graph
        self._made: dict[str, list[InputPart]] = {
            name: [InputPart(None, Box.whole(graph.shape(name)))] for name in graph.inputs
        }

    def add_block(self, index: int, block: Block) -> None:
        """Adds a block's tasks; their outputs become available to later blocks."""
        first = len(self.tasks)
        for tile in block.tiles:
            reach = tile_extent(self.network, block, tile)
            self.tasks.append(
                TaskSpec(
                    id=len(self.tasks),
                    block=index,
                    device=tile.device,
                    program="",
                    inputs=tuple(self._input(name, box) for name, box in reach.inputs.items()),
                    outputs=tuple(
                        TaskOutput(name, box, reach.computed[name], tile.reduce)
                        for name, box in tile.boxes.items()
                    ),
                    barrier=block.barrier,
                    direct=block.exchange == "peer",
                )
            )
        for task in self.tasks[first:]:
            for output in task.outputs:
                self._made.setdefault(output.tensor, []).append(InputPart(task.id, output.box))
                if output.reduce:
                    self._summed.add(output.tensor)

    def _input(self, tensor: str, box: Box) -> TaskInput:
        pieces = tuple(
            InputPart(part.source, part.box.intersect(box))
            for part in self._made[tensor]
            if part.box.overlaps(box)
        )
        return TaskInput(tensor, box, pieces, tensor in self._summed)
