"""A loaded model as the network that is planned: divided into units, with compact inputs on the
wire.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from PIL import Image

from models.catalogue.catalogue import LoadedModel
from models.cut.cutter import cut
from models.cut.encoded import Range, ValueRanges, encodes
from models.cut.program import BlobSource
from models.cut.units import Network, divide
from models.digits import MODEL
from models.digits.examples import examples
from models.graph.graph import Graph, results_of
from models.onnx_file.importer import graph_of
from models.onnx_file.stored import Allocate, in_memory
from models.run.quantised_inputs import as_they_travel, with_quantised_inputs
from models.run.reference import ProgramRunner, random_inputs
from models.run.timed import timed
from models.tensors.arrays import Arrays
from models.tensors.boxes import Box
from models.vision.image_input import ImageInput
from models.vision.pixels import with_pixels
from models.vision.preprocess import image_to_pixels

# Seeds of the noise that ranges are found with; measurements of the effect use others.
SEEDS = range(1000, 1008)
# The share of an output's entries that plans count as sent where the reader looks at the likely
# ones alone. Assumed: how many are likely is known only once the picture is seen.
_EXPECTED_SHARE = 1 / 64


def network_of(loaded: LoadedModel, shown: str = "", room: Allocate = in_memory) -> Network:
    """The network of a model, named `shown`, with its weights in `room`. Ranges for 8-bit maps are
    found on first use.
    """
    graph = _loaded(loaded, shown or loaded.name, room)
    graph = with_pixels(replace(graph, file=loaded.file), loaded.sidecar)
    graph = with_quantised_inputs(graph)
    if loaded.sidecar is not None:
        # Planners count that few bytes of selected outputs travel.
        selections = loaded.sidecar.selections(graph.output_shapes)
        if graph.ending is not None:
            selections = graph.ending.selected(selections)
        tensors = dict(graph.tensors)
        for name in results_of(selections, graph.joined):
            if name not in graph.consumers:
                tensors[name] = replace(tensors[name], read_share=_EXPECTED_SHARE)
        graph = replace(graph, tensors=tensors)
        graph = replace(graph, precision=loaded.sidecar.precision)

    form = loaded.sidecar.input if loaded.sidecar and loaded.name == MODEL.stem else None

    graph = timed(graph)

    def ranges() -> ValueRanges:
        return ranges_of(graph, _samples(graph, form))

    return divide(graph, ranges)


def _loaded(loaded: LoadedModel, name: str, room: Allocate) -> Graph:
    """The graph, without its ending if the model's reader selects rows that this makes."""
    sidecar = loaded.sidecar
    graph = graph_of(loaded.stored, name, room, ends=sidecar is not None)
    if sidecar is None or graph.ending is None:
        return graph
    if graph.ending.understands(sidecar.selections(graph.output_shapes)):
        return graph
    return graph_of(loaded.stored, name, room)


def _samples(graph: Graph, form: ImageInput | None) -> Iterator[Arrays]:
    """Inputs in wire form: the example sheets in the `form` of `digits`, else seeded noise."""
    if form is not None:
        for example in examples():
            yield {form.name: image_to_pixels(Image.open(example.path).convert("RGB"), form)[0]}
        return
    for seed in SEEDS:
        yield as_they_travel(graph, random_inputs(graph, seed))


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
