"""YOLOv8n (Jocher et al., 2023): C2f modules, a pyramid up and down, an anchor-free head.

The outputs are the three raw maps, as exports for accelerators leave them: 4 x 16 bins of box
distances, then 80 classes, per pixel.
"""

from __future__ import annotations

from models.stored import StoredModel
from models.zoo.builder import Network, Tensor, square
from models.zoo.layers import SILU_GAIN, silu, upsample

SEED = 8
SIDE = 640
CLASSES = 80
BINS = 16
# The form "n": width 0.25, depth 1/3.
CHANNELS = (16, 32, 64, 128, 256)
DEPTHS = (1, 2, 2, 1)


def yolov8n(side: int = SIDE) -> StoredModel:
    """(1, 3, 640, 640) -> (1, 144, 80, 80), (1, 144, 40, 40), (1, 144, 20, 20); `side` is that of
    the input, a multiple of 32.
    """
    net = Network("yolov8n", SEED)
    x = _conv(net.input("image", (1, 3, side, side)), "stem", CHANNELS[0], 3, 2)
    maps = []
    for stage, (channels, depth) in enumerate(zip(CHANNELS[1:], DEPTHS, strict=True), start=2):
        x = _conv(x, f"down{stage}", channels, 3, 2)
        x = _c2f(x, f"stage{stage}", channels, depth, residual=True)
        maps.append(x)
    _, eighth, sixteenth, _ = maps
    thirty_second = _fast_pyramid_pool(x, "sppf")
    up = upsample(thirty_second, "up4", 2)
    middle = _c2f(net.concat("up4_joined", [up, sixteenth]), "top4", CHANNELS[3], 1)
    up = upsample(middle, "up3", 2)
    fine = _c2f(net.concat("up3_joined", [up, eighth]), "top3", CHANNELS[2], 1)
    y = _conv(fine, "pan4_down", CHANNELS[2], 3, 2)
    middle = _c2f(net.concat("pan4_joined", [y, middle]), "pan4", CHANNELS[3], 1)
    y = _conv(middle, "pan5_down", CHANNELS[3], 3, 2)
    coarse = _c2f(net.concat("pan5_joined", [y, thirty_second]), "pan5", CHANNELS[4], 1)
    return net.stored(*(_head(x, f"head{n}") for n, x in enumerate((fine, middle, coarse), 3)))


def _conv(x: Tensor, name: str, channels: int, kernel: int, stride: int = 1) -> Tensor:
    return silu(x.conv(name, channels, square(kernel, stride), bias=False).norm(scale=SILU_GAIN))


def _c2f(x: Tensor, name: str, channels: int, depth: int, *, residual: bool = False) -> Tensor:
    """Half of the channels pass; the other half goes through bottlenecks whose every result is
    kept.
    """
    half = channels // 2
    net = x.network
    parts = net.split(f"{name}_split", _conv(x, f"{name}_in", channels, 1), (half, half))
    for index in range(1, depth + 1):
        y = _conv(parts[-1], f"{name}_{index}a", half, 3)
        y = _conv(y, f"{name}_{index}b", half, 3)
        parts.append(y.add(f"{name}_{index}", parts[-1]) if residual else y)
    return _conv(net.concat(f"{name}_concat", parts), f"{name}_out", channels, 1)


def _fast_pyramid_pool(x: Tensor, name: str) -> Tensor:
    channels = x.shape[1]
    maps = [_conv(x, f"{name}_in", channels // 2, 1)]
    for index in (1, 2, 3):
        maps.append(maps[-1].max_pool(f"{name}_pool{index}", square(5)))
    return _conv(x.network.concat(f"{name}_concat", maps), f"{name}_out", channels, 1)


def _head(x: Tensor, name: str) -> Tensor:
    boxes_inside, classes_inside = max(16, CHANNELS[2] // 4, 4 * BINS), max(CHANNELS[2], CLASSES)
    boxes = _branch(x, f"{name}_box", boxes_inside, 4 * BINS)
    classes = _branch(x, f"{name}_class", classes_inside, CLASSES)
    return x.network.concat(name, [boxes, classes])


def _branch(x: Tensor, name: str, inside: int, channels: int) -> Tensor:
    y = _conv(_conv(x, f"{name}_a", inside, 3), f"{name}_b", inside, 3)
    return y.conv(name, channels, square(1))
