"""ResNet-18 and ResNet-50 (He et al.), the latter in version 1.5: a stage's stride is in the 3x3
convolution.
"""

from collections.abc import Callable, Sequence

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel

SIDE = 224
CLASSES = 1000
# Channels inside the unit and first stride of conv2 .. conv5.
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
EXPANSION = 4
# Trained residual branches end with small scales; with 1, sixteen sums would grow without bound.
BRANCH_SCALE = 0.3
# A projection has no ReLU after it, which would have halved its mean square.
SHORTCUT_SCALE = 0.7


def resnet18() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    return _resnet("resnet18", 18, (2, 2, 2, 2), _basic)


def resnet50() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    return _resnet("resnet50", 50, (3, 4, 6, 3), _bottleneck)


def _resnet(
    name: str,
    seed: int,
    counts: Sequence[int],
    unit: Callable[[NetworkTensor, str, int, int], NetworkTensor],
) -> StoredModel:
    """`counts`: units of each stage."""
    net = NetworkBuilder(name, seed)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = x.conv("conv1", 64, square(7, 2), bias=False).norm().relu()
    x = x.max_pool("pool1", square(3, 2))
    for stage, ((channels, stride), count) in enumerate(zip(STAGES, counts, strict=True), start=2):
        for index in range(1, count + 1):
            x = unit(x, f"conv{stage}_{index}", channels, stride if index == 1 else 1)
    x = x.global_average_pool("pool5").flatten("flatten")
    return net.stored(x.gemm("fc", CLASSES))


def _basic(x: NetworkTensor, name: str, channels: int, stride: int) -> NetworkTensor:
    y = x.conv(f"{name}a", channels, square(3, stride), bias=False).norm().relu()
    y = y.conv(f"{name}b", channels, square(3), bias=False).norm(scale=BRANCH_SCALE)
    return _joined(x, y, name, stride)


def _bottleneck(x: NetworkTensor, name: str, channels: int, stride: int) -> NetworkTensor:
    y = x.conv(f"{name}a", channels, square(1), bias=False).norm().relu()
    y = y.conv(f"{name}b", channels, square(3, stride), bias=False).norm().relu()
    y = y.conv(f"{name}c", channels * EXPANSION, square(1), bias=False).norm(scale=BRANCH_SCALE)
    return _joined(x, y, name, stride)


def _joined(x: NetworkTensor, y: NetworkTensor, name: str, stride: int) -> NetworkTensor:
    """A unit's branch and its input, which is projected where its shape is another."""
    if x.shape != y.shape:
        x = x.conv(f"{name}_shortcut", y.shape[1], square(1, stride), bias=False).norm(
            scale=SHORTCUT_SCALE
        )
    return y.add(name, x).relu()
