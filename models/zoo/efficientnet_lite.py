"""EfficientNet-Lite0 (Tan and Le, 2019; Liu, 2020): EfficientNet-B0 without squeeze-and-excitation
and with ReLU6 in place of swish, as it runs on phones.
"""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import LINEAR_GAIN, depthwise, relu6, same_at_stride

SEED = 20
SIDE = 224
CLASSES = 1000
# Expansion, channels, repeats, first stride, kernel: table 1 of EfficientNet.
STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


def efficientnet_lite0() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    net = NetworkBuilder("efficientnet_lite0", SEED)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = relu6(x.conv("stem", 32, same_at_stride(3, 2, SIDE), bias=False).norm())
    for stage, (expansion, channels, count, stride, kernel) in enumerate(STAGES, start=1):
        for index in range(1, count + 1):
            form = (expansion, channels, stride if index == 1 else 1, kernel)
            x = _bottleneck(x, f"b{stage}_{index}", form)
    x = relu6(x.conv("head", 1280, square(1), bias=False).norm())
    x = x.global_average_pool("pool").flatten("flatten")
    return net.stored(x.gemm("fc", CLASSES))


def _bottleneck(x: NetworkTensor, name: str, form: tuple[int, int, int, int]) -> NetworkTensor:
    expansion, channels, stride, kernel = form
    y = x
    if expansion > 1:
        y = relu6(y.conv(f"{name}_expand", x.shape[1] * expansion, square(1), bias=False).norm())
    windows = same_at_stride(kernel, stride, y.shape[2])
    y = relu6(depthwise(y, f"{name}_depthwise", windows).norm())
    y = y.conv(f"{name}_project", channels, square(1), bias=False).norm(scale=LINEAR_GAIN)
    return y.add(name, x) if y.shape == x.shape else y
