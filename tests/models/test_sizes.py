"""Open dimensions are fixed: by default, by the model's name, or by its sidecar."""

from __future__ import annotations

import json

import pytest

from coordinator.library.naming import Names, public_name
from models.catalogue import catalogue
from models.check.check import check, fused
from models.cut.units import divide
from models.graph.sizes import Size, split_name
from models.onnx_file.importer import load_graph
from protos.errors import BadRequest
from tests.models.model_files import SIDECAR, opened, saved, tiny


@pytest.mark.parametrize(
    ("text", "model", "size"),
    [
        ("net.onnx", "net.onnx", None),
        ("a/net.onnx@480x640", "a/net.onnx", Size(480, 640)),
        ("a@b/net.onnx", "a@b/net.onnx", None),
        ("net@8x9@10x11", "net@8x9", Size(10, 11)),
        ("net@x9", "net@x9", None),
    ],
)
def test_a_name_may_end_in_a_size(text, model, size):
    assert split_name(text) == (model, size)


@pytest.mark.parametrize("text", ["net@0x5", "net@5x0", "net@8193x5", "net@99999x99999"])
def test_impossible_sizes_are_refused(text):
    with pytest.raises(BadRequest, match="asks for maps of"):
        split_name(text)


@pytest.mark.parametrize("batch", ["N", None, 0])
def test_an_open_batch_is_one(batch):
    assert load_graph(opened((batch, 3, 8, 8))).shape("in0") == (1, 3, 8, 8)


def test_a_named_size_fixes_height_and_width(tmp_path):
    path = saved(tmp_path, opened(("N", 3, "H", "W")))
    loaded = catalogue.load(f"{path}@20x24")
    assert loaded.name == "tiny@20x24"
    network = divide(load_graph(loaded.proto, loaded.name))
    assert network.graph.shape("conv1_relu") == (1, 4, 20, 24)
    assert check(loaded.proto, network, (3, 2), fused(network)).ok


def test_a_symbol_has_one_value_for_all_inputs(tmp_path):
    path = saved(tmp_path, opened(("N", 3, "H", "W"), (1, 1, "H", "W")))
    graph = load_graph(catalogue.load(f"{path}@20x24").proto)
    assert [graph.shape(name) for name in graph.inputs] == [(1, 3, 20, 24), (1, 1, 20, 24)]


@pytest.mark.parametrize(
    ("shape", "size", "bound"),
    [
        ((1, 3, 16, "W"), "16x40", (1, 3, 16, 40)),
        ((1, 3, "H", 24), "20x24", (1, 3, 20, 24)),
        (("N", 3, 16, "W"), "16x16", (1, 3, 16, 16)),
    ],
)
def test_height_or_width_alone_may_be_open(tmp_path, shape, size, bound):
    path = saved(tmp_path, opened(shape))
    assert load_graph(catalogue.load(f"{path}@{size}").proto).shape("in0") == bound
    with pytest.raises(BadRequest, match="are fixed, and are not 17x25"):
        catalogue.load(f"{path}@17x25")
    with pytest.raises(BadRequest, match=r"no fixed size along dimension.*Name a height"):
        load_graph(catalogue.load(path).proto)


def test_the_exporters_size_fixes_what_is_open_and_gives_way_to_a_named_one(tmp_path):
    proto = opened(("N", 3, "H", "W"))
    proto.metadata_props.add(key="imgsz", value="[16, 24]")
    path = saved(tmp_path, proto)
    assert load_graph(catalogue.load(path).proto).shape("in0") == (1, 3, 16, 24)
    assert load_graph(catalogue.load(f"{path}@8x12").proto).shape("in0") == (1, 3, 8, 12)


def test_an_open_size_asks_to_be_named(tmp_path):
    path = saved(tmp_path, opened((1, 3, "H", "W")))
    with pytest.raises(BadRequest, match=r"'in0' has no fixed size.*net\.onnx@480x640"):
        load_graph(catalogue.load(path).proto)


@pytest.mark.parametrize(
    ("shape", "cause", "cure"),
    [
        ((0,), "'in0' has size 0 along dimension 0", "of 1 or more"),
        ((1, 8, 0), "'in0' has size 0 along dimension 2", "of 1 or more"),
        ((1, 3, -1, -1), "'in0' has size -1 along dimension 2", "Name a height"),
        ((1, 3, 0, 0), "'in0' has size 0 along dimension 2", "Name a height"),
    ],
)
def test_a_size_that_is_none_is_said(shape, cause, cure):
    with pytest.raises(BadRequest, match=f"{cause}.*{cure}"):
        load_graph(opened(shape))


def test_open_channels_cannot_be_named(tmp_path):
    path = saved(tmp_path, opened((1, "C", "H", "W")))
    with pytest.raises(BadRequest, match=r"along dimension 1.*Export"):
        catalogue.load(f"{path}@8x8")


def test_a_fixed_size_is_no_other(tmp_path):
    path = saved(tmp_path, tiny())
    assert catalogue.load(f"{path}@8x8").name == "tiny@8x8"
    with pytest.raises(BadRequest, match="are fixed, and are not 8x9"):
        catalogue.load(f"{path}@8x9")
    with pytest.raises(BadRequest, match="are fixed"):
        catalogue.load("lenet5@30x30")


def test_the_sidecars_size_fixes_what_is_open_and_gives_way_to_a_named_one(tmp_path):
    path = saved(tmp_path, opened(("N", 3, "H", "W")))
    side = {**SIDECAR, "input": {**SIDECAR["input"], "name": "in0"}}
    path.with_suffix(".json").write_text(json.dumps(side))
    assert load_graph(catalogue.load(path).proto).shape("in0") == (1, 3, 8, 8)
    other = catalogue.load(f"{path}@16x12")
    assert load_graph(other.proto).shape("in0") == (1, 3, 16, 12)
    assert other.sidecar is not None
    assert other.sidecar.input.size == (16, 12)


def test_a_centre_crop_of_a_named_size_is_no_larger_than_what_it_is_cut_from(tmp_path):
    path = saved(tmp_path, opened(("N", 3, "H", "W")))
    crop = {"name": "in0", "resize": "centre-crop", "resize_shorter": 9}
    side = {**SIDECAR, "input": {**SIDECAR["input"], **crop}}
    path.with_suffix(".json").write_text(json.dumps(side))
    for size, shorter in (("8x8", 9), ("16x12", 16)):
        sidecar = catalogue.load(f"{path}@{size}").sidecar
        assert sidecar is not None
        assert sidecar.input.resize_shorter == shorter


@pytest.mark.needs_room("models/zoo")
def test_size_classes_go_by_their_models_name():
    names = Names(["/models/net.onnx"])
    assert names.source("net@8x9") == "/models/net.onnx@8x9"
    assert names.public("/models/net.onnx@8x9")[0] == "net@8x9"
    assert names.source("lenet5@8x9") == "lenet5@8x9"
    assert public_name("/models/net.onnx@8x9") == "net@8x9"
