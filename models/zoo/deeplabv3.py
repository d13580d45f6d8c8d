"""DeepLabv3 (Chen et al., 2017) with its atrous spatial pyramid over MobileNetV2 at output stride
16, for PASCAL VOC's 21 classes: the mobile form of table 7 of the MobileNetV2 paper.
"""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import bilinear
from models.zoo.mobilenetv2 import features

SEED = 33
SIDE = 513
CLASSES = 21
CHANNELS = 256
RATES = (6, 12, 18)


def deeplabv3() -> StoredModel:
    """(1, 3, 513, 513) -> logits (1, 21, 513, 513)."""
    net = NetworkBuilder("deeplabv3", SEED)
    x = features(net.input("image", (1, 3, SIDE, SIDE)), output_stride=16)
    x = _pyramid(x).conv("logits", CLASSES, square(1))
    return net.stored(bilinear(x, "output", (SIDE, SIDE)))


def _pyramid(x: NetworkTensor) -> NetworkTensor:
    """Five views of the map, from one pixel to all of it."""
    views = [_conv(x, "aspp_1x1", 1, 1)]
    views += [_conv(x, f"aspp_rate{rate}", 3, rate) for rate in RATES]
    pooled = _conv(x.global_average_pool("aspp_pool"), "aspp_pooled", 1, 1)
    views.append(bilinear(pooled, "aspp_image", x.shape[2:]))
    return _conv(x.network.concat("aspp", views), "aspp_project", 1, 1)


def _conv(x: NetworkTensor, name: str, kernel: int, dilation: int) -> NetworkTensor:
    windows = square(kernel, dilation=dilation)
    return x.conv(name, CHANNELS, windows, bias=False).norm().relu()
