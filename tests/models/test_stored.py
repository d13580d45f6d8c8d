"""Large weights are read once, into the room that is made for them, and nothing else changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.importer import graph_of
from models.onnx_file.mapped import MappedWeights, location_of
from models.onnx_file.model_file import read_model
from models.onnx_file.stored import in_memory
from protos.errors import BadRequest
from tests.models.model_files import saved

LARGE = ("conv1.weight", "conv2.weight")


def network() -> ModelProto:
    net = NetworkBuilder("two", seed=5)
    x = net.input("image", (1, 3, 8, 8)).conv("conv1", 64, square(3)).relu()
    return net.model(x.conv("conv2", 32, square(3)))


def external(folder: Path) -> Path:
    """The network with its weights in a file beside it."""
    model = network()
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    path = folder / "two.onnx"
    onnx.save_model(model, path)
    return path


@pytest.mark.parametrize("kind", ["inside", "beside"])
def test_large_weights_are_read_into_their_room(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path, network()) if kind == "inside" else external(tmp_path)
    stored = read_model(path)
    assert stored.complete() == network()
    lacking = [each.name for each in stored.proto.graph.initializer if not each.raw_data]
    assert lacking == list(LARGE)
    arrays = stored.read(MappedWeights(tmp_path / "room", stored.sizes).empty)
    assert sorted(arrays) == sorted(LARGE)
    for each in network().graph.initializer:
        if each.name in arrays:
            assert location_of(arrays[each.name]) is not None
            assert np.array_equal(arrays[each.name], numpy_helper.to_array(each))
            with pytest.raises(ValueError, match="read-only"):
                arrays[each.name][0] = 1


@pytest.mark.parametrize("kind", ["inside", "beside"])
def test_a_file_that_was_changed_meanwhile_is_not_read(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path, network()) if kind == "inside" else external(tmp_path)
    stored = read_model(path)
    changed = path if kind == "inside" else tmp_path / "weights.bin"
    os.truncate(changed, 100)
    with pytest.raises(BadRequest, match=r"'conv1\.weight'.*has changed since"):
        stored.read(in_memory)
    changed.unlink()
    with pytest.raises(BadRequest, match="No such file"):
        stored.read(in_memory)


@pytest.mark.parametrize(
    "damage",
    [
        lambda tensor: tensor.dims.append(2),
        lambda tensor: tensor.ClearField("dims"),
        lambda tensor: tensor.dims.__setitem__(0, -64),
        lambda tensor: setattr(tensor, "data_type", TensorProto.DOUBLE),
        lambda tensor: setattr(tensor, "data_type", TensorProto.STRING),
        lambda tensor: setattr(tensor, "data_type", 99),
        lambda tensor: setattr(tensor, "raw_data", tensor.raw_data[:-1]),
    ],
)
def test_weights_that_do_not_fit_their_shape_are_refused(tmp_path: Path, damage) -> None:
    model = network()
    damage(model.graph.initializer[0])
    stored = read_model(saved(tmp_path, model))
    with pytest.raises(BadRequest, match=r"conv1\.weight"):
        graph_of(stored)


def test_types_that_numpy_stores_otherwise_are_read_with_the_model(tmp_path: Path) -> None:
    model = network()
    packed = helper.make_tensor("packed", TensorProto.BFLOAT16, (64, 64), bytes(8192), raw=True)
    model.graph.initializer.append(packed)
    stored = read_model(saved(tmp_path, model))
    assert sorted(stored.read(in_memory)) == sorted(LARGE)
    assert stored.complete() == model


def test_of_two_values_the_last_one_counts(tmp_path: Path) -> None:
    """A message that follows another of its kind is merged with it."""
    model, path = network(), tmp_path / "twice.onnx"
    weight = model.graph.initializer[0]
    again = TensorProto(raw_data=np.ones(weight.dims, np.float32).tobytes())
    twice = weight.SerializeToString() + again.SerializeToString()
    del model.graph.initializer[0]
    field = GraphProto.INITIALIZER_FIELD_NUMBER << 3 | 2
    graph = encoded(field, twice) + model.graph.SerializeToString()
    model.ClearField("graph")
    whole = encoded(ModelProto.GRAPH_FIELD_NUMBER << 3 | 2, graph)
    path.write_bytes(model.SerializeToString() + whole)
    assert read_model(path).complete() == ModelProto.FromString(path.read_bytes())


def encoded(tag: int, value: bytes) -> bytes:
    """A field with a length, as protobuf writes it."""
    size, left = b"", len(value)
    while left > 0x7F:
        size, left = size + bytes([left & 0x7F | 0x80]), left >> 7
    return bytes([tag]) + size + bytes([left]) + value


_PEAK = """
import sys, resource
from pathlib import Path
from coordinator.library.loaded import load
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kept = load(sys.argv[1], "net", Path(sys.argv[2]))
rss = [l for l in open("/proc/self/status") if l.startswith(("RssAnon", "VmHWM"))]
print(before, kept.weight_bytes, *(line.split()[1] for line in rss))
"""


@pytest.mark.parametrize("source", ["file", "catalogue"])
def test_reading_takes_no_memory_beside_the_mapped_weights(tmp_path: Path, source: str) -> None:
    name = "alexnet"
    if source == "file":
        from models.zoo.classic import alexnet

        name = str(saved(tmp_path, alexnet().complete()))
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, name, str(tmp_path / "room")],
        capture_output=True,
        text=True,
        check=True,
    )
    before, weights, peak, anonymous = map(int, done.stdout.split())
    assert weights > 200e6
    # Mapped pages count as resident; of other memory there is little.
    assert peak - before < weights / 1024 + 40_000
    assert anonymous < before + 40_000
