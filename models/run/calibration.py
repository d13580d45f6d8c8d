"""The ranges of values of a network's maps on sample inputs, which 8-bit encodings cover."""

from collections.abc import Iterable

from models.cut.cutter import cut
from models.cut.encoded import Range, ValueRanges, encodes
from models.cut.program import BlobSource
from models.cut.units import divide
from models.graph.graph import Graph
from models.run.reference import ProgramRunner
from models.tensors.arrays import Arrays
from models.tensors.boxes import Box


def ranges_of(graph: Graph, inputs: Iterable[Arrays]) -> ValueRanges:
    """The ranges of every map that may pass between blocks, over these inputs in wire form."""
    units = divide(graph).units
    wanted = [name for unit in units for name in unit.outputs if encodes(graph, name)]
    if not wanted:
        return {}
    blobs, found = BlobSource(), dict[str, Range]()
    demand = {name: Box.whole(graph.shape(name)) for name in wanted}
    piece = cut(graph, graph.nodes, demand, blobs, static=True)
    runner = ProgramRunner(blobs, threads=0)
    for feeds in inputs:
        # A stride may skip the last rows of an input.
        read = {name: feeds[name][box.slices()] for name, box in piece.inputs.items()}
        for name, values in zip(wanted, runner.run(piece.program, read, wanted), strict=True):
            seen = Range(values.min(axis=(0, 2, 3)), values.max(axis=(0, 2, 3)))
            found[name] = found[name].hull(seen) if name in found else seen
    return found
