"""Running blocks tile by tile in this process, merging outputs into whole tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from models.cut.cutter import CutTile, cut
from models.cut.program import BlobSource
from models.cut.tiles import MapTile, tile_boxes, whole_map
from models.cut.units import Network
from models.graph.shapes import TensorInfo
from models.run.quantised_inputs import as_they_travel
from models.run.reference import ProgramRunner, answer
from models.tensors.arrays import Arrays
from models.tensors.boxes import Box

TileFault = Callable[[Arrays], Arrays]
Planted = Callable[[np.ndarray], np.ndarray]


class TileRun:
    """One pass through a network, block after block. `tensors` holds the blocks' outputs so far.

    `fault` may damage a tile's inputs: a check that can't fail proves nothing.
    """

    def __init__(
        self,
        network: Network,
        blobs: BlobSource,
        feeds: Arrays,
        fault: TileFault = lambda feeds: feeds,
        threads: int = 1,
    ) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self._network = network
        self._blobs = blobs
        self._feeds = as_they_travel(network.graph, feeds)
        self._fault = fault
        self._threads = threads

    def block(
        self, start: int, stop: int, tiles: Sequence[MapTile], planted: Planted | None = None
    ) -> None:
        """Runs units [start, stop) in these tiles, or whole where they can't be split; with a
        `planted` fault in the middle one.
        """
        network, graph = self._network, self._network.graph
        runner = ProgramRunner(self._blobs, self._threads)
        self.tensors.update(
            {name: _unwritten(graph.tensors[name]) for name in network.outputs(start, stop)}
        )
        cut_tiles = list(pieces(network, start, stop, tiles, self._blobs))
        for number, (piece, boxes) in enumerate(cut_tiles):
            spoilt = planted if number == len(cut_tiles) // 2 else None
            self._run_tile(runner, piece, boxes, spoilt)

    def answer(self) -> dict[str, np.ndarray]:
        """The network's outputs, once all blocks ran."""
        graph = self._network.graph
        return answer(graph.outputs, graph.joined, self.tensors, graph.ending)

    def _run_tile(
        self,
        runner: ProgramRunner,
        piece: CutTile,
        boxes: Mapping[str, Box],
        planted: Planted | None,
    ) -> None:
        tensors = {**self._feeds, **self.tensors}
        parts = {
            name: np.array(tensors[name][box.slices()], order="C")
            for name, box in piece.inputs.items()
        }
        results = runner.run(piece.program, self._fault(parts), list(boxes))
        for (name, box), result in zip(boxes.items(), results, strict=True):
            if self._network.graph.tensors[name].is_dynamic:
                self.tensors[name] = result
                continue
            own = result[box.slices(inside=piece.yields[name])]
            self.tensors[name][box.slices()] = planted(own) if planted else own


def pieces(
    network: Network, start: int, stop: int, tiles: Sequence[MapTile], blobs: BlobSource
) -> Iterator[tuple[CutTile, Mapping[str, Box]]]:
    """Units [start, stop) cut in these tiles, or whole where they can't be split, each with the
    boxes that it makes.
    """
    if not network.is_divisible(start, stop):
        tiles = (whole_map(network, start, stop),)
    for tile in tiles:
        boxes = tile_boxes(network, start, stop, tile)
        if boxes:
            yield cut(network.graph, network.nodes(start, stop), boxes, blobs), boxes


def _unwritten(info: TensorInfo) -> np.ndarray:
    """An array of values that reveal elements that no tile has written."""
    shape, dtype = info.shape, info.dtype
    if np.issubdtype(dtype, np.floating):
        return np.full(shape, np.nan, dtype)
    return np.full(shape, np.iinfo(dtype).min if np.issubdtype(dtype, np.integer) else 1, dtype)
