"""Weights beside a model are brought in; nothing outside its folder is read."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from onnx.external_data_helper import convert_model_to_external_data

from models.catalogue import catalogue
from protos.errors import BadRequest
from tests.cli.run_cli import imbrex
from tests.models.model_files import saved, tiny


def external(folder: Path, location: str = "weights.bin", length: int | None = None) -> Path:
    """Writes `tiny` with its weights in another file, and then says they are at `location`."""
    model = tiny()
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    path = folder / "tiny.onnx"
    onnx.save_model(model, path)
    stored = onnx.load_model(path, load_external_data=False)
    for item in stored.graph.initializer[0].external_data:
        if item.key == "location":
            item.value = location
        if item.key == "length" and length is not None:
            item.value = str(length)
    path.write_bytes(stored.SerializeToString())
    return path


def test_weights_in_a_file_beside_the_model_are_brought_in(tmp_path):
    loaded = catalogue.load(external(tmp_path)).proto
    for weight, original in zip(loaded.graph.initializer, tiny().graph.initializer, strict=True):
        assert weight.raw_data == original.raw_data
        assert not weight.external_data


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", "a/../../weights.bin"])
def test_weights_outside_the_models_folder_are_refused(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(4096))
    with pytest.raises(BadRequest, match=r"'conv1\.weight'.*outside the model's folder"):
        catalogue.load(external(folder, location))


def test_link_out_of_the_models_folder_is_refused(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(BadRequest, match="outside the model's folder"):
        catalogue.load(external(folder, "link.bin"))


def test_a_download_cache_s_links_into_one_folder_are_followed(tmp_path):
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    folder.mkdir(parents=True)
    external(blobs).rename(blobs / "a1")
    (blobs / "weights.bin").rename(blobs / "b2")
    (folder / "tiny.onnx").symlink_to(blobs / "a1")
    (folder / "weights.bin").symlink_to(blobs / "b2")
    assert catalogue.load(folder / "tiny.onnx").proto.graph.initializer[0].raw_data
    (tmp_path / "weights.bin").write_bytes(bytes(4096))
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(BadRequest, match="outside the model's folder"):
        catalogue.load(folder / "tiny.onnx")


def test_missing_external_weights_are_named(tmp_path):
    with pytest.raises(BadRequest, match=r"there is no file .*absent\.bin"):
        catalogue.load(external(tmp_path, "absent.bin"))


def test_external_weights_that_end_too_early_are_refused(tmp_path):
    path = external(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(8))
    with pytest.raises(BadRequest, match="cannot be read"):
        catalogue.load(path)


def test_external_weights_beyond_protobufs_limit_are_refused_unread(tmp_path):
    model = tiny()
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(2**30)
    for name in ("first", "second"):
        tensor = model.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=[2**28])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
    with pytest.raises(BadRequest, match=r"takes 2\.15 GB with its weights"):
        catalogue.load(saved(tmp_path, model))


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("length", "12", "they take 432 bytes, but 12 are stated"),
        ("length", "-1", "they take 432 bytes, but -1 are stated"),
        ("offset", "-8", "'-8' is not an offset"),
        ("offset", "9" * 5000, "is not an offset"),
        ("offset", "1000000", "is too short"),
        ("location", "a\0b", "no usable location"),
        ("location", "a" * 5000, "no usable location"),
        ("location", "", "there is no file"),
    ],
)
def test_wrong_places_of_external_weights_are_named(tmp_path, key, value, problem):
    path = external(tmp_path)
    stored = onnx.load_model(path, load_external_data=False)
    places = stored.graph.initializer[0].external_data
    kept = [item for item in places if item.key != key]
    del places[:]
    places.extend(kept)
    places.add(key=key, value=value)
    with pytest.raises(BadRequest, match=problem):
        catalogue.load(saved(tmp_path, stored))


@pytest.mark.parametrize("data_type", [0, 99, TensorProto.STRING])
def test_external_weights_of_no_numeric_type_are_refused(tmp_path, data_type):
    path = external(tmp_path)
    stored = onnx.load_model(path, load_external_data=False)
    stored.graph.initializer[0].data_type = data_type
    with pytest.raises(BadRequest, match="cannot be read"):
        catalogue.load(saved(tmp_path, stored))


def test_external_weights_of_nested_graphs_are_guarded(tmp_path):
    inner = helper.make_tensor("hidden", TensorProto.FLOAT, [1], [1.0])
    inner.ClearField("float_data")
    inner.data_location = TensorProto.EXTERNAL
    inner.external_data.add(key="location", value="../weights.bin")
    branch = helper.make_graph(
        [helper.make_node("Identity", ["hidden"], ["out"])],
        "branch",
        [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1])],
        [inner],
    )
    model = tiny()
    model.graph.node.append(
        helper.make_node("If", ["condition"], ["chosen"], then_branch=branch, else_branch=branch)
    )
    with pytest.raises(BadRequest, match=r"'hidden'.*outside the model's folder"):
        catalogue.load(saved(tmp_path, model))


def test_triton_s_folder_of_a_model_is_read(tmp_path, store):
    """`tiny.onnx/` holds `tiny.onnx` and its weights."""
    path = external(tmp_path)
    folder = tmp_path / "there" / path.name
    folder.mkdir(parents=True)
    for each in (path, tmp_path / "weights.bin"):
        each.rename(folder / each.name)
    whole = tiny().graph.initializer[0].raw_data
    for given in (folder, f"{folder}/"):
        loaded = catalogue.load(given)
        assert (loaded.name, loaded.proto.graph.initializer[0].raw_data) == ("tiny", whole)
    assert imbrex("models", "add", f"{folder}/", "--task", "tensor", "--name", "kept").code == 0
    assert catalogue.load("kept").proto.graph.initializer[0].raw_data == whole
