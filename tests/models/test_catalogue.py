from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.external_data_helper import convert_model_to_external_data

from models import catalogue
from models.windows import Window
from models.zoo.builder import Network, square
from protos.errors import BadRequest, NotFound

BUILT = (
    "vgg16",
    "vgg16-256",
    "vgg16-conv",
    "vgg16-256-conv",
    "yolov2",
    "resnet50",
    "inceptionv3",
    "alexnet",
    "lenet5",
)


@dataclass(frozen=True)
class Facts:
    """What the literature says of a network; FLOPs count 2 per multiply-add, convolutions only."""

    convolutions: int
    gflop: float
    parameters: int
    output: tuple[int, ...]


FACTS = {
    "vgg16": Facts(13, 30.69, 138_357_544, (1, 1000)),
    "vgg16-256": Facts(13, 40.09, 169_814_824, (1, 1000)),
    "vgg16-conv": Facts(13, 30.69, 14_714_688, (1, 512, 7, 7)),
    "vgg16-256-conv": Facts(13, 40.09, 14_714_688, (1, 512, 8, 8)),
    "yolov2": Facts(23, 29.46, 50_962_889, (1, 425, 13, 13)),
    "resnet50": Facts(53, 8.17, 25_557_032, (1, 1000)),
    "inceptionv3": Facts(94, 11.42, 23_834_568, (1, 1000)),
    "alexnet": Facts(5, 1.31, 61_100_840, (1, 1000)),
    "lenet5": Facts(2, 0.004, 431_080, (1, 10)),
}


@dataclass(frozen=True)
class Light:
    """A network without the bytes of its weights, which are most of its size."""

    proto: ModelProto
    shapes: dict[str, tuple[int, ...]]
    digests: dict[str, str]


@cache
def built(name: str) -> Light:
    loaded = catalogue.load(name)
    assert (loaded.name, loaded.sidecar, loaded.trained) == (name, None, False)
    proto = loaded.proto
    shapes = {weight.name: tuple(weight.dims) for weight in proto.graph.initializer}
    digests = {
        weight.name: hashlib.sha256(weight.raw_data).hexdigest()
        for weight in proto.graph.initializer
        if weight.name == "conv1_1.weight" or weight.name.endswith(".bias")
    }
    for weight in proto.graph.initializer:
        info = helper.make_tensor_value_info(weight.name, TensorProto.FLOAT, weight.dims)
        proto.graph.input.append(info)
    proto.graph.ClearField("initializer")
    light = onnx.shape_inference.infer_shapes(
        proto, check_type=True, strict_mode=True, data_prop=True
    )
    return Light(light, shapes | _shapes(light), digests)


def _shapes(proto: ModelProto) -> dict[str, tuple[int, ...]]:
    graph = proto.graph
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
    }


def conv_flop(network: Light) -> int:
    return sum(
        2 * math.prod(network.shapes[node.output[0]]) * math.prod(network.shapes[node.input[1]][1:])
        for node in network.proto.graph.node
        if node.op_type == "Conv"
    )


@pytest.mark.parametrize("name", BUILT)
def test_network_is_what_the_literature_describes(name):
    network, facts = built(name), FACTS[name]
    graph = network.proto.graph
    assert Counter(node.op_type for node in graph.node)["Conv"] == facts.convolutions
    assert conv_flop(network) / 1e9 == pytest.approx(facts.gflop, abs=0.005)
    assert sum(math.prod(shape) for shape in _weights(network)) == facts.parameters
    assert [network.shapes[value.name] for value in graph.output] == [facts.output]


def _weights(network: Light) -> list[tuple[int, ...]]:
    """Shapes of the weights that training fits: batch normalisation's statistics are not."""
    return [
        network.shapes[value.name]
        for value in network.proto.graph.input[1:]
        if not value.name.endswith((".mean", ".variance"))
    ]


def test_vgg16_costs_exactly_what_aofl_counts():
    flop = conv_flop(built("vgg16-256-conv"))
    assert f"{flop / 1e9:.2f}" == "40.09"
    assert flop * 7**2 == conv_flop(built("vgg16-conv")) * 8**2


@pytest.mark.parametrize("name", BUILT)
def test_network_is_valid_and_labelled_untrained(name):
    light = built(name).proto
    onnx.checker.check_model(light, full_check=True)
    assert light.opset_import[0].version == 17
    assert light.ir_version == 9
    assert [(prop.key, prop.value) for prop in light.metadata_props] == [
        ("imbrex.weights", "untrained, for benchmarks")
    ]
    assert "untrained" in catalogue.entry(name).description
    assert all(node.name == node.output[0] for node in light.graph.node)


@pytest.mark.parametrize("name", BUILT)
def test_declared_output_shape_is_the_inferred_one(name):
    light = ModelProto()
    light.CopyFrom(built(name).proto)
    declared = _shapes(light)[light.graph.output[0].name]
    light.graph.output[0].type.tensor_type.ClearField("shape")
    assert _shapes(onnx.shape_inference.infer_shapes(light))[light.graph.output[0].name] == declared


# The last weight that is drawn: any change of the stream before it would show in it.
LAST_WEIGHTS = {
    "vgg16": ("fc8.bias", "07f99a8289d28e50"),
    "vgg16-256": ("fc8.bias", "c49a96844c6e8492"),
    "vgg16-conv": ("conv5_3.bias", "590586335e4e1476"),
    "vgg16-256-conv": ("conv5_3.bias", "590586335e4e1476"),
    "yolov2": ("conv22.bias", "9d46a0f3374cf536"),
    "resnet50": ("fc.bias", "668605715d58bab0"),
    "inceptionv3": ("fc.bias", "e288fe076b1f4923"),
    "alexnet": ("fc8.bias", "dd67d8250e41146c"),
    "lenet5": ("ip2.bias", "8ce966844e14de64"),
}


@pytest.mark.parametrize("name", BUILT)
def test_weights_are_the_same_everywhere(name):
    weight, digest = LAST_WEIGHTS[name]
    assert built(name).digests[weight].startswith(digest)


def test_variants_of_vgg16_share_the_weights_of_their_convolutions():
    variants = [built(name).digests for name in BUILT if name.startswith("vgg16")]
    assert len({digests["conv1_1.weight"] for digests in variants}) == 1
    assert len({digests["conv5_3.bias"] for digests in variants}) == 1


@pytest.mark.parametrize(
    "name", ["vgg16-conv", "yolov2", "resnet50", "inceptionv3", "alexnet", "lenet5"]
)
def test_activations_stay_sane(name):
    proto = catalogue.load(name).proto
    final = proto.graph.output[0].name
    for node in proto.graph.node:
        if node.output[0] != final:
            proto.graph.output.append(helper.make_empty_tensor_value_info(node.output[0]))
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    shape = session.get_inputs()[0].shape
    image = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    outputs = session.run(None, {"image": image})
    spread = {
        value.name: float(array.std())
        for value, array in zip(session.get_outputs(), outputs, strict=True)
    }
    assert len(spread) == len(proto.graph.node)
    assert all(0.1 < value < 20 for value in spread.values()), spread


def test_yolov2_passes_its_fine_map_at_once():
    order = [node.name for node in built("yolov2").proto.graph.node]
    start = order.index("conv13_leaky")
    assert order[start + 1 : start + 6] == [
        "passthrough",
        "passthrough_bn",
        "passthrough_leaky",
        "passthrough_reorg",
        "pool5",
    ]
    assert built("yolov2").shapes["passthrough_reorg"] == (1, 256, 13, 13)
    assert built("yolov2").shapes["concat"] == (1, 1280, 13, 13)


def test_resnet50_strides_in_the_3x3():
    shapes = built("resnet50").shapes
    assert shapes["conv3_1a"] == (1, 128, 56, 56)
    assert shapes["conv3_1b"] == (1, 128, 28, 28)


def test_builder_tracks_the_shapes_that_onnx_infers():
    net = Network("shapes", seed=1)
    x = net.input("image", (2, 8, 29, 31))
    uneven = (Window(3, 2, 1, 0, 1), Window(5, 1, 2, 3, 4))
    tensors = [x := x.conv("uneven", 12, uneven, groups=4, bias=False).norm().leaky_relu(0.2)]
    tensors.append(x.max_pool("dilated", (Window(2, 1, 2, 1, 0), Window(3, 3, 1, 1, 1))))
    tensors.append(x.average_pool("average", square(3, 2), count_pads=True))
    tensors.append(
        x.conv("same", 20, square(3, dilation=2)).add("twice", x.conv("b", 20, square(1)))
    )
    tensors.append(net.concat("joined", [x, tensors[-1]]))
    tensors.append(x.max_pool("even", square(2, 2)).global_average_pool("mean").flatten("flat"))
    tensors.append(tensors[-1].gemm("fc", 5))
    model = net.model(*tensors)
    onnx.checker.check_model(model, full_check=True)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = _shapes(onnx.shape_inference.infer_shapes(model, strict_mode=True))
    assert [inferred[tensor.name] for tensor in tensors] == [tensor.shape for tensor in tensors]
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    outputs = session.run(None, {"image": np.ones((2, 8, 29, 31), np.float32)})
    assert [array.shape for array in outputs] == [tensor.shape for tensor in tensors]


def test_unknown_name_lists_the_names_and_suggests_one():
    with pytest.raises(NotFound) as caught:
        catalogue.load("vgg-16")
    assert "vgg-16" in caught.value.cause
    assert "Did you mean 'vgg16'?" in caught.value.cure
    assert all(name in caught.value.cure for name in catalogue.names())


def test_nothing_is_suggested_for_a_name_like_no_other():
    with pytest.raises(NotFound) as caught:
        catalogue.entry("qqqqqq")
    assert "Did you mean" not in caught.value.cure


def test_entries_describe_themselves():
    assert catalogue.names() == ("digits", *BUILT)
    assert [name for name in catalogue.names() if catalogue.entry(name).trained] == ["digits"]
    assert catalogue.entry("digits").task == "detection"
    assert {catalogue.entry(name).task for name in BUILT} == {"tensor"}


def tiny(opset: int = 17) -> ModelProto:
    net = Network("tiny", seed=3)
    x = net.input("image", (1, 3, 8, 8)).conv("conv1", 4, square(3)).relu()
    model = net.model(x)
    model.opset_import[0].version = opset
    return model


def saved(folder: Path, model: ModelProto) -> Path:
    path = folder / "tiny.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("as_text", [True, False])
def test_onnx_file_loads_by_path(tmp_path, as_text):
    path = saved(tmp_path, tiny())
    loaded = catalogue.load(str(path) if as_text else path)
    assert loaded.name == "tiny"
    assert loaded.sidecar is None
    assert loaded.proto == tiny()


def test_file_is_trusted_to_be_trained_unless_it_says_otherwise(tmp_path):
    model = tiny()
    assert not catalogue.load(saved(tmp_path, model)).trained
    model.ClearField("metadata_props")
    assert catalogue.load(saved(tmp_path, model)).trained


SIDECAR = {
    "name": "tiny",
    "task": "tensor",
    "description": "one convolution",
    "licence": "Apache-2.0",
    "source": "tests",
    "trained": True,
    "labels": [],
    "input": {
        "name": "image",
        "size": [8, 8],
        "resize": "stretch",
        "color": "RGB",
        "scale": 1.0,
        "mean": [0.0, 0.0, 0.0],
        "std": [1.0, 1.0, 1.0],
        "pad_value": 0,
    },
}


def test_sidecar_beside_a_file_is_read_and_knows_best_whether_it_is_trained(tmp_path):
    path = saved(tmp_path, tiny())
    path.with_suffix(".json").write_text(json.dumps(SIDECAR))
    loaded = catalogue.load(path)
    assert loaded.sidecar is not None
    assert loaded.sidecar.input.size == (8, 8)
    assert loaded.trained


def test_wrong_sidecar_is_refused(tmp_path):
    path = saved(tmp_path, tiny())
    path.with_suffix(".json").write_text(json.dumps(SIDECAR | {"colour": "RGB"}))
    with pytest.raises(BadRequest, match="colour"):
        catalogue.load(path)


def test_shipped_file_loads_by_name(tmp_path, monkeypatch):
    path = saved(tmp_path, tiny())
    entry = catalogue.Entry("shipped", "a file", catalogue.Shipped(path))
    monkeypatch.setitem(catalogue._ENTRIES, "shipped", entry)
    assert catalogue.load("shipped").proto == tiny()


def test_missing_file_is_not_found(tmp_path):
    with pytest.raises(NotFound, match=r"there is no file .*absent\.onnx"):
        catalogue.load(str(tmp_path / "absent.onnx"))


def test_folder_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="is not a file"):
        catalogue.load(tmp_path)


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
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "tiny.onnx"
    path.write_bytes(content)
    with pytest.raises(BadRequest, match="not a complete ONNX model"):
        catalogue.load(path)


def test_file_beyond_protobufs_limit_is_refused_unread(tmp_path):
    path = tmp_path / "tiny.onnx"
    with path.open("wb") as file:
        file.truncate(catalogue.MAX_MODEL_BYTES + 1)
    with pytest.raises(BadRequest, match=r"takes 2\.15 GB"):
        catalogue.load(path)


@pytest.mark.parametrize("opset", [6, 24])
def test_opset_out_of_range_is_refused(tmp_path, opset):
    with pytest.raises(BadRequest, match=f"opset {opset}"):
        catalogue.load(saved(tmp_path, tiny(opset)))


@pytest.mark.parametrize("opset", [7, 23])
def test_opset_in_range_is_accepted(tmp_path, opset):
    assert catalogue.load(saved(tmp_path, tiny(opset))).proto.opset_import[0].version == opset


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


def test_missing_external_weights_are_named(tmp_path):
    with pytest.raises(BadRequest, match=r"there is no file .*absent\.bin"):
        catalogue.load(external(tmp_path, "absent.bin"))


def test_external_weights_that_end_too_early_are_refused(tmp_path):
    path = external(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(8))
    with pytest.raises(BadRequest, match="cannot be read"):
        catalogue.load(path)


def test_external_weights_beyond_protobufs_limit_are_refused_unread(tmp_path):
    with pytest.raises(BadRequest, match="GB with its weights"):
        catalogue.load(external(tmp_path, length=2**31))


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


def test_inception_pools_its_maps_as_published():
    shapes = built("inceptionv3").shapes
    assert shapes["pool2"] == (1, 192, 35, 35)
    assert shapes["a3"] == (1, 288, 35, 35)
    assert shapes["c4"] == (1, 768, 17, 17)
    assert shapes["e2"] == (1, 2048, 8, 8)
