"""ResNet-50 (He et al.), version 1.5: a stage's stride is in the 3x3 convolution."""

from __future__ import annotations

from models.stored import StoredModel
from models.zoo.builder import Network, Tensor, square

SEED = 50
SIDE = 224
CLASSES = 1000
# Channels inside the bottleneck, number of bottlenecks and first stride of conv2 .. conv5.
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
EXPANSION = 4
# Trained residual branches end with small scales; with 1, sixteen sums would grow without bound.
BRANCH_SCALE = 0.3
# A projection has no ReLU after it, which would have halved its mean square.
SHORTCUT_SCALE = 0.7


def resnet50() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    net = Network("resnet50", SEED)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = x.conv("conv1", 64, square(7, 2), bias=False).norm().relu()
    x = x.max_pool("pool1", square(3, 2))
    for stage, (channels, count, stride) in enumerate(STAGES, start=2):
        for index in range(1, count + 1):
            name = f"conv{stage}_{index}"
            x = _bottleneck(x, name, channels, stride if index == 1 else 1)
    x = x.global_average_pool("pool5").flatten("flatten")
    return net.stored(x.gemm("fc", CLASSES))


def _bottleneck(x: Tensor, name: str, channels: int, stride: int) -> Tensor:
    y = x.conv(f"{name}a", channels, square(1), bias=False).norm().relu()
    y = y.conv(f"{name}b", channels, square(3, stride), bias=False).norm().relu()
    y = y.conv(f"{name}c", channels * EXPANSION, square(1), bias=False).norm(scale=BRANCH_SCALE)
    if x.shape != y.shape:
        x = x.conv(f"{name}_shortcut", channels * EXPANSION, square(1, stride), bias=False).norm(
            scale=SHORTCUT_SCALE
        )
    return y.add(name, x).relu()
