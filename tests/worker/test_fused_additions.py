"""A residual block's addition and activation are part of its convolution's kernel, as in the whole
network, although a program is prepared without the sizes of its tiles.
"""

import numpy as np
import onnx
import pytest

from models.catalogue.catalogue import load
from models.catalogue.loading import network_of
from models.cut.cutter import cut
from models.cut.program import BlobSource
from models.tensors.boxes import Box, Span
from tests.worker.room import Room

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def network():
    return network_of(load("resnet18"))


@pytest.mark.parametrize("rows", [(0, 20), (10, 30), (0, 56)])
def test_no_addition_of_a_residual_block_is_a_kernel_of_its_own(tmp_path, network, rows):
    first, stop = network.marks[1], network.marks[3]
    (output,) = network.boundaries[stop].live
    whole = Box.whole(network.graph.shape(output))
    nodes = [node for unit in network.units[first:stop] for node in unit.nodes]
    assert sum(node.op == "Add" for node in nodes) == 2
    blobs = BlobSource()
    wanted = {output: Box((*whole[:2], Span(*rows), whole[3]))}
    tile = cut(network.graph, nodes, wanted, blobs)
    room = Room(tmp_path, 64 * MEGABYTE, 64 * MEGABYTE, as_on_arm=True)
    room.install(tile.program, blobs)
    (file,) = (tmp_path / "optimised").glob("*.onnx")
    kernels = {node.op_type for node in onnx.load(file, load_external_data=False).graph.node}
    assert kernels <= {"FusedConv", "Slice"}
    random = np.random.default_rng(0)
    feeds = {
        name: random.standard_normal(box.shape).astype(np.float32)
        for name, box in tile.inputs.items()
    }
    weights = {
        ref.name: np.frombuffer(blobs.bytes_of(ref.sha256), np.float32).reshape(ref.dims)
        for ref in tile.program.weights
    }
    sessions = room.sessions.get(tile.program.sha256), room.engine.trial(tile.program, weights, 1)
    shapes = {output: tile.yields[output].shape}
    made, expected = (each.bound(feeds, shapes).compute()[output] for each in sessions)
    assert np.abs(made - expected).max() <= 1e-5 * np.abs(expected).max()
