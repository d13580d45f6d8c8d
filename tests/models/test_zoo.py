"""The untrained networks are valid, sane, and the same on every machine."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper

from models.catalogue import catalogue
from tests.models.model_files import shapes_of
from tests.models.zoo_light import BUILT, built


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
    declared = shapes_of(light)[light.graph.output[0].name]
    light.graph.output[0].type.tensor_type.ClearField("shape")
    assert (
        shapes_of(onnx.shape_inference.infer_shapes(light))[light.graph.output[0].name] == declared
    )


# The last weight that is drawn: any change of the stream before it would show in it.
LAST_WEIGHTS = {
    "vgg16": ("fc8.bias", "07f99a8289d28e50"),
    "vgg16-256": ("fc8.bias", "c49a96844c6e8492"),
    "vgg16-conv": ("conv5_3.bias", "590586335e4e1476"),
    "vgg16-256-conv": ("conv5_3.bias", "590586335e4e1476"),
    "yolov2": ("conv22.bias", "9d46a0f3374cf536"),
    "resnet18": ("fc.bias", "b47224ea3ad3d2a2"),
    "resnet50": ("fc.bias", "668605715d58bab0"),
    "inceptionv3": ("fc.bias", "e288fe076b1f4923"),
    "alexnet": ("fc8.bias", "dd67d8250e41146c"),
    "lenet5": ("ip2.bias", "8ce966844e14de64"),
    "squeezenet": ("conv10.bias", "fc7b53a7c12f06eb"),
    "googlenet": ("fc.bias", "c03cda4fa1d8a5d4"),
    "densenet121": ("fc.bias", "390197292264bb38"),
    "mobilenetv2": ("fc.bias", "9e413da60daa7ccd"),
    "mobilenetv3": ("fc2.bias", "310094905e69b320"),
    "shufflenetv2": ("fc.bias", "0e6126c0122da164"),
    "efficientnet-lite0": ("fc.bias", "ce4a28ffa0274fa1"),
    "convnext-tiny": ("fc.bias", "1c007d74eb6dedbd"),
    "yolov3-tiny": ("fine.bias", "4669609a741e0112"),
    "yolov8n": ("head5_class.bias", "91114689984f9cde"),
    "unet": ("logits.bias", "c455a9ec9f927c00"),
    "deeplabv3": ("logits.bias", "58d62a7608e208c3"),
    "espcn": ("conv3.bias", "3f16a77c70581a7b"),
    "style-transfer": ("output.bias", "9a66ee7a8d316507"),
}


@pytest.mark.parametrize("name", BUILT)
def test_weights_are_the_same_everywhere(name):
    weight, digest = LAST_WEIGHTS[name]
    assert built(name).digests[weight].startswith(digest)


def test_variants_of_vgg16_share_the_weights_of_their_convolutions():
    variants = [built(name).digests for name in BUILT if name.startswith("vgg16")]
    assert len({digests["conv1_1.weight"] for digests in variants}) == 1
    assert len({digests["conv5_3.bias"] for digests in variants}) == 1


# Numbers of cells and of pixels.
PLACES = {"low_high", "boxes", "output0"}
COSTLY = {"deeplabv3", "unet", "vgg16", "yolov2"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in COSTLY else name
        for name in BUILT
        if not name.startswith("vgg16-256")
    ],
)
def test_activations_stay_sane(name):
    proto = catalogue.load(name).proto
    final = {value.name for value in proto.graph.output}
    made = [name for node in proto.graph.node for name in node.output]
    proto.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in made if name not in final
    )
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    shape = session.get_inputs()[0].shape
    image = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    outputs = session.run(None, {"image": image})
    spread = {
        value.name: float(array.std())
        for value, array in zip(session.get_outputs(), outputs, strict=True)
        if array.size > 1 and value.name not in PLACES
    }
    assert len(outputs) == len(made)
    # A mean over 768 channels varies by 1 / sqrt(768).
    assert all(0.02 < value < 25 for value in spread.values()), spread
