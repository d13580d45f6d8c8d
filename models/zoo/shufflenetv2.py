"""ShuffleNetV2 1.0x (Ma et al., 2018): units pass half of their channels on, then shuffle all."""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import LINEAR_GAIN, channel_shuffle, depthwise

SEED = 24
SIDE = 224
CLASSES = 1000
# Channels and units of each stage: table 5 of the paper.
STAGES = ((116, 4), (232, 8), (464, 4))


def shufflenetv2() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    net = NetworkBuilder("shufflenetv2", SEED)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = x.conv("conv1", 24, square(3, 2), bias=False).norm().relu()
    x = x.max_pool("pool1", square(3, 2))
    for stage, (channels, count) in enumerate(STAGES, start=2):
        x = _halving(x, f"stage{stage}_1", channels)
        for index in range(2, count + 1):
            x = _unit(x, f"stage{stage}_{index}")
    x = x.conv("conv5", 1024, square(1), bias=False).norm().relu()
    x = x.global_average_pool("pool5").flatten("flatten")
    return net.stored(x.gemm("fc", CLASSES))


def _unit(x: NetworkTensor, name: str) -> NetworkTensor:
    """Figure 3 (c): one half as it is."""
    half = x.shape[1] // 2
    kept, y = x.network.split(f"{name}_split", x, (half, half))
    joined = x.network.concat(f"{name}_concat", [kept, _branch(y, name, half, 1)])
    return channel_shuffle(joined, name, 2)


def _halving(x: NetworkTensor, name: str, channels: int) -> NetworkTensor:
    """Figure 3 (d): both branches read everything and halve the map."""
    half = channels // 2
    y = depthwise(x, f"{name}_left_depthwise", square(3, 2)).norm(scale=LINEAR_GAIN)
    left = y.conv(f"{name}_left", half, square(1), bias=False).norm().relu()
    joined = x.network.concat(f"{name}_concat", [left, _branch(x, name, half, 2)])
    return channel_shuffle(joined, name, 2)


def _branch(x: NetworkTensor, name: str, channels: int, stride: int) -> NetworkTensor:
    y = x.conv(f"{name}_in", channels, square(1), bias=False).norm().relu()
    y = depthwise(y, f"{name}_depthwise", square(3, stride)).norm(scale=LINEAR_GAIN)
    return y.conv(f"{name}_out", channels, square(1), bias=False).norm().relu()
