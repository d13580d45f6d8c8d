"""What a preset charges for a tile's nodes, and how fast this machine runs them on the whole map.

A tile is charged for its kernels at a pace that is its program's own: at that pace the same nodes
take, on the whole map, what the preset says. So each class of layer is as slow as the preset has
it, and a tile is as much less efficient as it is here.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx

from coordinator.costs.affine import EngineCosts
from models.cut.program import Program, whole_network
from models.graph.graph import Graph
from models.onnx_file.importer import load_graph
from models.operators import Kind, operator
from models.operators.work import NodeWork, tile_works
from models.tensors.arrays import Arrays
from models.tensors.boxes import Box
from protos.errors import BadRequest, ImbrexError
from protos.wire.convert import dtype_of
from worker.engines.base import Ready, Runnable

T = TypeVar("T")
Shapes = Mapping[str, tuple[int, ...]]

_SUFFIX = ".maps.json"
# Of a map (1, channels, rows, columns).
_RANK, _ROWS = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun(Ready[T]):
    """A run that knows its program, the session that runs it, its inputs, what the preset charges
    for its engine, and how to set up the same run by each of the device's other engines.
    """

    program: Program
    session: Runnable
    inputs: Arrays
    costs: EngineCosts
    others: "Sequence[Callable[[], ProgramRun[T]]]" = ()


@dataclass(frozen=True, slots=True)
class WholeMap:
    """The seconds that a preset charges for a program's nodes on inputs of these shapes, but for
    reading weights; and the name of the kernels that compute them.
    """

    seconds: float
    shapes: Shapes
    kernels: tuple[object, ...]

    def run(self, tile: ProgramRun[Any]) -> Ready[Any]:
        """The program of a tile on such inputs.

        Raises:
            ImbrexError: it does not take them.
        """
        feeds = {name: np.resize(tile.inputs[name], shape) for name, shape in self.shapes.items()}
        return replace(tile.session.bound(feeds, {}), kernels=self.kernels)


class WholeMaps:
    """The whole maps of programs, by their kernels; `folder` is that of `write_maps`."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[tuple[object, ...], WholeMap | None] = {}

    def of(self, tile: ProgramRun[Any]) -> WholeMap | None:
        """None if it is not known what the program computes."""
        if tile.kernels not in self._known:
            self._known[tile.kernels] = self._found(tile)
        return self._known[tile.kernels]

    def _found(self, tile: ProgramRun[Any]) -> WholeMap | None:
        own = {name: array.shape for name, array in tile.inputs.items()}
        works = works_of(tile.program, own)
        if not works:
            return None
        alone = WholeMap(tile.costs.program_s(works), own, tile.kernels)
        if whole_network(tile.program) is not None:
            return alone
        larger = grown(own, self._whole_shapes(own))
        if larger == own or not (works := works_of(tile.program, larger)):
            return alone
        with suppress(ImbrexError):  # sizes are written into the program
            kernels = (tile.kernels[0], *(larger[name] for name in tile.session.inputs))
            whole = WholeMap(tile.costs.program_s(works), larger, kernels)
            whole.run(tile).compute()
            return whole
        return alone

    def _whole_shapes(self, inputs: Shapes) -> Shapes:
        """The shapes of the network's maps that a tile reads; if nobody has told, maps are as high
        as they are wide.
        """
        files = self._folder.glob(f"*{_SUFFIX}") if self._folder else ()
        for file in sorted(files, key=lambda path: -path.stat().st_mtime_ns):
            shapes = json.loads(file.read_text())
            whole = {name: tuple(shapes.get(name, ())) for name in inputs}
            if all(
                len(shape) == len(whole[name])
                and all(size <= full for size, full in zip(shape, whole[name], strict=True))
                for name, shape in inputs.items()
            ):
                return whole
        return {
            name: (*shape[:_ROWS], max(shape[_ROWS:]), shape[-1]) if len(shape) == _RANK else shape
            for name, shape in inputs.items()
        }


def maps_of(graph: Graph) -> Shapes:
    """The shapes of a network's tensors, by their names."""
    return {name: info.shape for name, info in graph.tensors.items() if not info.is_dynamic}


def write_maps(folder: Path, network: str, maps: Shapes) -> None:
    """Tells the emulated workers that share `folder` how large the maps of a network are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{network}{_SUFFIX}").write_text(json.dumps(maps))


def works_of(program: Program, inputs: Shapes) -> Sequence[NodeWork]:
    """The work of a program's nodes for inputs of these shapes; none if it is not known."""
    with suppress(BadRequest):
        graph = load_graph(
            _with_inputs(program, inputs),
            weights={
                ref.name: np.broadcast_to(dtype_of(ref.data_type).type(0), ref.dims)
                for ref in program.weights
            },
        )
        if all(operator(node).kind is not Kind.OPAQUE for node in graph.nodes):
            everything = {name: Box.whole(graph.shape(name)) for name in graph.results}
            return tile_works(graph, graph.nodes, everything)
    return ()


def grown(inputs: Shapes, whole: Shapes) -> dict[str, tuple[int, ...]]:
    """The inputs of a tile that covers as much more of the map as there is: those that are not yet
    `whole` are larger by the same part of it.
    """
    sizes = {name: list(shape) for name, shape in inputs.items()}
    for axis in range(max(map(len, inputs.values()), default=0)):
        parts = {
            name: whole[name][axis]
            for name, shape in inputs.items()
            if axis < len(shape) and shape[axis] < whole[name][axis]
        }
        coarsest = min(parts.values(), default=0)
        steps = min(
            ((full - inputs[name][axis]) * coarsest // full for name, full in parts.items()),
            default=0,
        )
        for name, full in parts.items():
            sizes[name][axis] += steps * full // coarsest
    return {name: tuple(shape) for name, shape in sizes.items()}


def any_rows(program: Program) -> Program:
    """The program with maps of any size."""
    model = onnx.ModelProto.FromString(program.graph)
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        for axis in range(_ROWS, len(dims) if len(dims) == _RANK else 0):
            dims[axis].dim_param = f"{value.name}_d{axis}"
    return Program(model.SerializeToString(deterministic=True), program.weights)


def _with_inputs(program: Program, inputs: Shapes) -> onnx.ModelProto:
    """The program's graph for inputs of these shapes, with weights without values."""
    model = onnx.ModelProto.FromString(program.graph)
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        kind = value.type.tensor_type
        kind.ClearField("shape")
        for size in inputs.get(value.name, ()):
            kind.shape.dim.add(dim_value=size)
    for ref in program.weights:
        model.graph.initializer.add(name=ref.name, data_type=ref.data_type, dims=ref.dims)
    return model
