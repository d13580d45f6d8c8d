"""The untrained networks are what their papers describe."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import onnx
import pytest

from models.zoo.unet import unet
from tests.models.model_files import shapes_of
from tests.models.zoo_light import BUILT, Light, built


@dataclass(frozen=True)
class Facts:
    """What the literature says of a network. FLOPs count 2 per multiply-add, of convolutions
    (transposed ones too) only; parameters are those that training fits.
    """

    convolutions: int
    gflop: float
    parameters: int
    outputs: tuple[tuple[int, ...], ...]


CLASSES = ((1, 1000),)
FACTS = {
    "vgg16": Facts(13, 30.69, 138_357_544, CLASSES),
    "vgg16-256": Facts(13, 40.09, 169_814_824, CLASSES),
    "vgg16-conv": Facts(13, 30.69, 14_714_688, ((1, 512, 7, 7),)),
    "vgg16-256-conv": Facts(13, 40.09, 14_714_688, ((1, 512, 8, 8),)),
    "yolov2": Facts(23, 29.46, 50_962_889, ((1, 425, 13, 13),)),
    "resnet18": Facts(20, 3.63, 11_689_512, CLASSES),
    "resnet50": Facts(53, 8.17, 25_557_032, CLASSES),
    "inceptionv3": Facts(94, 11.42, 23_834_568, CLASSES),
    "alexnet": Facts(5, 1.31, 61_100_840, CLASSES),
    "lenet5": Facts(2, 0.004, 431_080, ((1, 10),)),
    "squeezenet": Facts(26, 1.64, 1_248_424, CLASSES),
    "googlenet": Facts(57, 3.16, 6_998_552, CLASSES),
    "densenet121": Facts(120, 5.67, 7_978_856, CLASSES),
    "mobilenetv2": Facts(52, 0.60, 3_504_872, CLASSES),
    "mobilenetv3": Facts(62, 0.43, 5_483_032, CLASSES),
    "shufflenetv2": Facts(56, 0.29, 2_278_604, CLASSES),
    "efficientnet-lite0": Facts(49, 0.77, 4_652_008, CLASSES),
    "convnext-tiny": Facts(58, 8.91, 28_589_128, CLASSES),
    # Darknet's file holds 8,858,734 floats: 2 * 3,184 of them are means and variances.
    "yolov3-tiny": Facts(13, 5.565, 8_852_366, ((1, 255, 13, 13), (1, 255, 26, 26))),
    "yolov8n": Facts(64, 8.74, 3_157_200, ((1, 84, 8400),)),
    "unet": Facts(23, 30.25, 31_030_658, ((1, 2, 68, 68),)),
    "deeplabv3": Facts(58, 10.73, 4_523_541, ((1, 21, 513, 513),)),
    "espcn": Facts(3, 2.27, 22_729, ((1, 1, 672, 672),)),
    "style-transfer": Facts(16, 15.43, 1_679_235, ((1, 3, 224, 224),)),
}

# What authors and frameworks state, in G multiply-adds unless said otherwise.
PUBLISHED_GFLOP = {
    "resnet18": 2 * 1.81,  # torchvision; table 1 of the paper says 1.8
    "squeezenet": 2 * 0.82,  # torchvision
    "googlenet": 2 * 1.58,  # Caffe's model zoo; the paper says 1.5
    "densenet121": 2 * 2.83,  # torchvision
    "mobilenetv2": 2 * 0.30,  # table 4 of the paper
    "mobilenetv3": 2 * 0.217,  # table 3 of the paper, its fully connected layers included
    "shufflenetv2": 2 * 0.146,  # table 8 of the paper, its fully connected layer included
    "efficientnet-lite0": 2 * 0.407,  # its release, pooling and fully connected layer included
    "convnext-tiny": 2 * 4.5,  # table 1 of the paper
    "yolov3-tiny": 5.571,  # GFLOP by Darknet, pools included
    "yolov8n": 8.7,  # GFLOP by its authors
    "deeplabv3": 2 * 5.8,  # table 7 of MobileNetV2, resizing included
}


def conv_flop(network: Light) -> int:
    """A transposed convolution multiplies each of its inputs, any other makes each output."""
    flop = 0
    for node in network.proto.graph.node:
        if node.op_type in ("Conv", "ConvTranspose"):
            walked = node.output[0] if node.op_type == "Conv" else node.input[0]
            weight = network.shapes[node.input[1]]
            flop += 2 * math.prod(network.shapes[walked]) * math.prod(weight[1:])
    return flop


@pytest.mark.parametrize("name", BUILT)
def test_network_is_what_the_literature_describes(name):
    network, facts = built(name), FACTS[name]
    graph = network.proto.graph
    operators = Counter(node.op_type for node in graph.node)
    assert operators["Conv"] + operators["ConvTranspose"] == facts.convolutions
    assert conv_flop(network) / 1e9 == pytest.approx(facts.gflop, abs=0.005)
    assert sum(math.prod(shape) for shape in _weights(network)) == facts.parameters
    assert tuple(network.shapes[value.name] for value in graph.output) == facts.outputs


@pytest.mark.parametrize("name", PUBLISHED_GFLOP)
def test_flop_are_the_published_ones(name):
    assert conv_flop(built(name)) / 1e9 == pytest.approx(PUBLISHED_GFLOP[name], rel=0.08)


def test_unet_makes_the_maps_of_its_papers_figure():
    model = unet(572).complete()
    shapes = shapes_of(onnx.shape_inference.infer_shapes(model))
    sizes = {name: shapes[name][1:3] for name in ("down1_b", "bottom_b", "up4_concat", "logits")}
    assert sizes == {
        "down1_b": (64, 568),
        "bottom_b": (1024, 28),
        "up4_concat": (1024, 56),
        "logits": (2, 388),
    }


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


def test_inception_pools_its_maps_as_published():
    shapes = built("inceptionv3").shapes
    assert shapes["pool2"] == (1, 192, 35, 35)
    assert shapes["a3"] == (1, 288, 35, 35)
    assert shapes["c4"] == (1, 768, 17, 17)
    assert shapes["e2"] == (1, 2048, 8, 8)
