"""MobileNetV1 (Howard et al., 2017) of width 1.0, for its published times."""

from __future__ import annotations

from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import depthwise

SIDE = 224
CLASSES = 1000
# Channels and stride of each pair of a depthwise and a 1x1 convolution: table 1 of its paper.
PAIRS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)


def mobilenetv1() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    net = NetworkBuilder("mobilenetv1", seed=17)
    x = net.input("image", (1, 3, SIDE, SIDE)).conv("stem", 32, square(3, 2), bias=False)
    x = x.norm().relu()
    for index, (channels, stride) in enumerate(PAIRS, start=1):
        x = depthwise(x, f"depthwise{index}", square(3, stride)).norm().relu()
        x = x.conv(f"pointwise{index}", channels, square(1), bias=False).norm().relu()
    return net.stored(x.global_average_pool("pool").flatten("flat").gemm("logits", CLASSES))
