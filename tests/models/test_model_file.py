"""Files that are not models are refused, each with one clear error."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from models.catalogue import catalogue
from models.graph.graph import OPSETS
from models.onnx_file import model_file
from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.importer import load_graph
from models.onnx_file.model_file import read_model
from models.run.reference import EQUAL, WholeModel, compare, random_inputs
from protos.errors import BadRequest, NotFound
from tests.models.model_files import saved, tiny


def test_missing_file_is_not_found(tmp_path):
    with pytest.raises(NotFound, match=r"there is no file .*absent\.onnx"):
        catalogue.load(str(tmp_path / "absent.onnx"))


def test_folder_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="is not a file"):
        catalogue.load(tmp_path)
    saved(tmp_path, tiny())
    with pytest.raises(BadRequest, match=r"for example .*\.onnx\.$") as caught:
        catalogue.load(tmp_path)
    named = caught.value.cure.removeprefix("Give the path of an .onnx file, for example ")
    assert catalogue.load(named.removesuffix("."))


def test_every_truncation_is_refused(tmp_path):
    model = tiny()
    model.ClearField("metadata_props")  # last in the file; without it a model is still complete
    whole = model.SerializeToString()
    path = tmp_path / "tiny.onnx"
    for stop in range(len(whole)):
        path.write_bytes(whole[:stop])
        with pytest.raises(BadRequest, match="not a complete ONNX model"):
            catalogue.load(path)


@pytest.mark.parametrize(
    "content", [b"", b"not a model", b"\x89PNG\r\n\x1a\n" + bytes(100), bytes(64), b'{"a": 1}']
)
def test_files_that_are_no_models_are_refused(tmp_path, content):
    path = tmp_path / "tiny.onnx"
    path.write_bytes(content)
    with pytest.raises(BadRequest, match="not a complete ONNX model"):
        catalogue.load(path)


def test_file_beyond_protobufs_limit_is_refused_unread(tmp_path):
    path = tmp_path / "tiny.onnx"
    with path.open("wb") as file:
        file.truncate(model_file.MAX_MODEL_BYTES + 1)
    with pytest.raises(BadRequest, match=r"takes 2\.15 GB"):
        catalogue.load(path)


@pytest.mark.parametrize("opset", [0, 29])
def test_opset_out_of_range_is_refused(tmp_path, opset):
    with pytest.raises(BadRequest, match=f"opset {opset}"):
        catalogue.load(saved(tmp_path, tiny(opset)))


@pytest.mark.parametrize("opset", [7, 24, 25, 28])
def test_opset_in_range_is_accepted(tmp_path, opset):
    assert catalogue.load(saved(tmp_path, tiny(opset))).proto.opset_import[0].version == opset


def test_an_older_opset_is_taken_as_far_as_onnxruntime_knows_its_operators(tmp_path):
    model = tiny(6)
    loaded = catalogue.load(saved(tmp_path, model))
    assert loaded.proto.opset_import[0].version == OPSETS.start
    feeds = {"image": np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)}
    assert compare(WholeModel(loaded.proto).run(feeds), WholeModel(model).run(feeds)) == EQUAL
    model.graph.node.append(helper.make_node("Add", ["conv1", "conv1"], ["sum"], broadcast=0))
    with pytest.raises(BadRequest, match="uses Add as opset 6 defines it"):
        catalogue.load(saved(tmp_path, model))


@pytest.mark.parametrize("version", [3, 8])
@pytest.mark.parametrize("listed", [False, True])
def test_initialisers_may_be_inputs_or_not_in_any_version(tmp_path, version, listed):
    """Before IR version 4 ONNX wanted them listed; onnxruntime takes either, and so do we."""
    net = NetworkBuilder("sliced", seed=3)
    x = net.input("image", (1, 3, 8, 8)).conv("conv1", 4, square(3))
    ends = [net.integers(name, [value]) for name, value in (("from", 1), ("to", 7), ("axis", 2))]
    model = net.model(net.node("Slice", "rows", [x.name, *ends], (1, 4, 6, 8)).relu())
    model.ir_version = version
    if listed:
        model.graph.input.extend(
            helper.make_tensor_value_info(each.name, each.data_type, each.dims)
            for each in model.graph.initializer
        )
    proto = read_model(saved(tmp_path, model)).complete()
    graph = load_graph(proto)
    assert graph.inputs == ("image",)
    whole = WholeModel(proto, threads=1).run(random_inputs(graph))
    assert {name: array.shape for name, array in whole.items()} == {
        name: graph.shape(name) for name in graph.outputs
    }
