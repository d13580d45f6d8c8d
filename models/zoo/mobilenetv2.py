"""MobileNetV2 (Sandler et al., 2018), width 1.0: inverted residuals with linear bottlenecks."""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import LINEAR_GAIN, depthwise, relu6

SEED = 22
SIDE = 224
CLASSES = 1000
# Expansion, channels, repeats, first stride: table 2 of the paper.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenetv2() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    net = NetworkBuilder("mobilenetv2", SEED)
    x = features(net.input("image", (1, 3, SIDE, SIDE)))
    x = relu6(x.conv("conv_last", 1280, square(1), bias=False).norm())
    x = x.global_average_pool("pool").flatten("flatten")
    return net.stored(x.gemm("fc", CLASSES))


def features(image: NetworkTensor, *, output_stride: int = 32) -> NetworkTensor:
    """The map of 320 channels that the last bottleneck makes. Where the output stride would be
    exceeded, convolutions are dilated instead [Chen et al., DeepLabv3].
    """
    x = relu6(image.conv("conv1", 32, square(3, 2), bias=False).norm())
    reached, dilation = 2, 1
    for stage, (expansion, channels, count, stride) in enumerate(STAGES, start=1):
        for index in range(1, count + 1):
            step = stride if index == 1 else 1
            if reached * step > output_stride:
                dilation, step = dilation * step, 1
            reached *= step
            x = _bottleneck(x, f"b{stage}_{index}", (expansion, channels, step, dilation))
    return x


def _bottleneck(x: NetworkTensor, name: str, form: tuple[int, int, int, int]) -> NetworkTensor:
    expansion, channels, stride, dilation = form
    y = x
    if expansion > 1:
        y = relu6(y.conv(f"{name}_expand", x.shape[1] * expansion, square(1), bias=False).norm())
    y = relu6(depthwise(y, f"{name}_depthwise", square(3, stride, dilation=dilation)).norm())
    y = y.conv(f"{name}_project", channels, square(1), bias=False).norm(scale=LINEAR_GAIN)
    return y.add(name, x) if y.shape == x.shape else y
