"""MobileNetV3-Large (Howard et al., 2019): squeeze-and-excitation, hard swish."""

from collections.abc import Callable
from typing import NamedTuple

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import HARD_SWISH_GAIN, LINEAR_GAIN, depthwise, hard_swish

SEED = 23
SIDE = 224
CLASSES = 1000
HIDDEN = 1280
# A gate lies between 0 and 1, mostly near its middle.
GATED_GAIN = 1.2


class BlockRow(NamedTuple):
    """One row of table 1 of the paper."""

    kernel: int
    expanded: int
    channels: int
    gated: bool
    hard: bool
    stride: int


ROWS = (
    BlockRow(3, 16, 16, False, False, 1),
    BlockRow(3, 64, 24, False, False, 2),
    BlockRow(3, 72, 24, False, False, 1),
    BlockRow(5, 72, 40, True, False, 2),
    BlockRow(5, 120, 40, True, False, 1),
    BlockRow(5, 120, 40, True, False, 1),
    BlockRow(3, 240, 80, False, True, 2),
    BlockRow(3, 200, 80, False, True, 1),
    BlockRow(3, 184, 80, False, True, 1),
    BlockRow(3, 184, 80, False, True, 1),
    BlockRow(3, 480, 112, True, True, 1),
    BlockRow(3, 672, 112, True, True, 1),
    BlockRow(5, 672, 160, True, True, 2),
    BlockRow(5, 960, 160, True, True, 1),
    BlockRow(5, 960, 160, True, True, 1),
)


def mobilenetv3() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    net = NetworkBuilder("mobilenetv3", SEED)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = hard_swish(x.conv("conv1", 16, square(3, 2), bias=False).norm())
    for number, row in enumerate(ROWS, start=1):
        x = _bottleneck(x, f"b{number}", row)
    x = hard_swish(x.conv("conv_last", 960, square(1), bias=False).norm(scale=HARD_SWISH_GAIN))
    x = x.global_average_pool("pool").flatten("flatten")
    x = hard_swish(x.gemm("fc1", HIDDEN))
    return net.stored(x.gemm("fc2", CLASSES))


def _bottleneck(x: NetworkTensor, name: str, row: BlockRow) -> NetworkTensor:
    activation: Callable[[NetworkTensor], NetworkTensor] = (
        hard_swish if row.hard else NetworkTensor.relu
    )
    gain = HARD_SWISH_GAIN if row.hard else 1.0
    y = x
    if row.expanded != x.shape[1]:
        y = y.conv(f"{name}_expand", row.expanded, square(1), bias=False).norm(scale=gain)
        y = activation(y)
    y = depthwise(y, f"{name}_depthwise", square(row.kernel, row.stride)).norm(scale=gain)
    y = activation(y)
    if row.gated:
        y = _gated(y, f"{name}_se")
    scale = LINEAR_GAIN * (GATED_GAIN if row.gated else 1.0)
    y = y.conv(f"{name}_project", row.channels, square(1), bias=False).norm(scale=scale)
    return y.add(name, x) if y.shape == x.shape else y


def _gated(x: NetworkTensor, name: str) -> NetworkTensor:
    """Squeeze and excitation: channels weighted by a gate over the whole map."""
    squeezed = _divisible(x.shape[1] / 4)
    y = x.global_average_pool(f"{name}_pool").conv(f"{name}_reduce", squeezed, square(1)).relu()
    y = y.conv(f"{name}_expand", x.shape[1], square(1))
    y = y.attached("HardSigmoid", "hsigmoid", alpha=1 / 6, beta=0.5)
    return x.network.node("Mul", name, [x.name, y.name], x.shape)


def _divisible(channels: float, by: int = 8) -> int:
    """The nearest multiple of `by` that takes away at most a tenth."""
    near = max(by, int(channels + by / 2) // by * by)
    return near if near >= 0.9 * channels else near + by
