"""Networks of inverted residuals with linear bottlenecks: MobileNetV2 (Sandler et al., 2018) of
width 1.0, EfficientNet-Lite0, and DeepLabv3 over the first.
"""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, Windows, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import LINEAR_GAIN, bilinear, depthwise, relu6, same_at_stride

SIDE = 224
CLASSES = 1000
# Expansion, channels, repeats, first stride: table 2 of MobileNetV2.
MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
# Expansion, channels, repeats, first stride, kernel: table 1 of EfficientNet.
EFFICIENTNET_STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
# Of DeepLabv3, for PASCAL VOC.
MASK_SIDE = 513
MASK_CLASSES = 21
PYRAMID_CHANNELS = 256
RATES = (6, 12, 18)


def mobilenetv2() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    net = NetworkBuilder("mobilenetv2", seed=22)
    x = _features(net.input("image", (1, 3, SIDE, SIDE)))
    return net.stored(_classified(x, "conv_last"))


def efficientnet_lite0() -> StoredModel:
    """EfficientNet-Lite0 (Tan and Le, 2019; Liu, 2020): EfficientNet-B0 without
    squeeze-and-excitation and with ReLU6 in place of swish, as it runs on phones:
    (1, 3, 224, 224) -> logits (1, 1000).
    """
    net = NetworkBuilder("efficientnet_lite0", seed=20)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = relu6(x.conv("stem", 32, same_at_stride(3, 2, SIDE), bias=False).norm())
    for stage, (expansion, channels, count, stride, kernel) in enumerate(EFFICIENTNET_STAGES, 1):
        for index in range(1, count + 1):
            windows = same_at_stride(kernel, stride if index == 1 else 1, x.shape[2])
            x = _bottleneck(x, f"b{stage}_{index}", expansion, channels, windows)
    return net.stored(_classified(x, "head"))


def deeplabv3() -> StoredModel:
    """DeepLabv3 (Chen et al., 2017) with its atrous spatial pyramid over MobileNetV2 at output
    stride 16, the mobile form of table 7 of the MobileNetV2 paper:
    (1, 3, 513, 513) -> logits (1, 21, 513, 513).
    """
    net = NetworkBuilder("deeplabv3", seed=33)
    x = _features(net.input("image", (1, 3, MASK_SIDE, MASK_SIDE)), output_stride=16)
    x = _pyramid(x).conv("logits", MASK_CLASSES, square(1))
    return net.stored(bilinear(x, "output", (MASK_SIDE, MASK_SIDE)))


def _features(image: NetworkTensor, *, output_stride: int = 32) -> NetworkTensor:
    """The map of 320 channels that MobileNetV2's last bottleneck makes. Where the output stride
    would be exceeded, convolutions are dilated instead [Chen et al., DeepLabv3].
    """
    x = relu6(image.conv("conv1", 32, square(3, 2), bias=False).norm())
    reached, dilation = 2, 1
    for stage, (expansion, channels, count, stride) in enumerate(MOBILENET_STAGES, start=1):
        for index in range(1, count + 1):
            step = stride if index == 1 else 1
            if reached * step > output_stride:
                dilation, step = dilation * step, 1
            reached *= step
            windows = square(3, step, dilation=dilation)
            x = _bottleneck(x, f"b{stage}_{index}", expansion, channels, windows)
    return x


def _bottleneck(
    x: NetworkTensor, name: str, expansion: int, channels: int, windows: Windows
) -> NetworkTensor:
    y = x
    if expansion > 1:
        y = relu6(y.conv(f"{name}_expand", x.shape[1] * expansion, square(1), bias=False).norm())
    y = relu6(depthwise(y, f"{name}_depthwise", windows).norm())
    y = y.conv(f"{name}_project", channels, square(1), bias=False).norm(scale=LINEAR_GAIN)
    return y.add(name, x) if y.shape == x.shape else y


def _classified(x: NetworkTensor, name: str) -> NetworkTensor:
    x = relu6(x.conv(name, 1280, square(1), bias=False).norm())
    return x.global_average_pool("pool").flatten("flatten").gemm("fc", CLASSES)


def _pyramid(x: NetworkTensor) -> NetworkTensor:
    """Five views of the map, from one pixel to all of it."""
    views = [_view(x, "aspp_1x1", 1, 1)]
    views += [_view(x, f"aspp_rate{rate}", 3, rate) for rate in RATES]
    pooled = _view(x.global_average_pool("aspp_pool"), "aspp_pooled", 1, 1)
    views.append(bilinear(pooled, "aspp_image", x.shape[2:]))
    return _view(x.network.concat("aspp", views), "aspp_project", 1, 1)


def _view(x: NetworkTensor, name: str, kernel: int, dilation: int) -> NetworkTensor:
    windows = square(kernel, dilation=dilation)
    return x.conv(name, PYRAMID_CHANNELS, windows, bias=False).norm().relu()
