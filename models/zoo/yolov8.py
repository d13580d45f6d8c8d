"""YOLOv8n (Jocher et al., 2023): C2f modules, a pyramid up and down, an anchor-free head.

The head makes three maps: 4 x 16 bins of box distances, then 80 classes, per pixel. Exports for
accelerators leave them so; Ultralytics' own decode them to one list of boxes.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.downloads import labels
from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.vision.sidecar import Sidecar, read_sidecar
from models.zoo.layers import SILU_GAIN, constant, silu, upsample

SEED = 8
SIDE = 640
CLASSES = 80
BINS = 16
# The form "n": width 0.25, depth 1/3.
CHANNELS = (16, 32, 64, 128, 256)
DEPTHS = (1, 2, 2, 1)
STRIDES = (8, 16, 32)
# Before training, five objects in a picture of this side are expected.
_OBJECTS, _PICTURE = 5, 640


def yolov8n(side: int = SIDE) -> StoredModel:
    """(1, 3, 640, 640) -> (1, 84, 8400): centre x, y, width, height in pixels, and a score for each
    class; `side` is that of the input, a multiple of 32.
    """
    net = NetworkBuilder("yolov8n", SEED)
    priors = [math.log(_OBJECTS / CLASSES / (_PICTURE / stride) ** 2) for stride in STRIDES]
    return net.stored(_decoded(_maps(net, side, priors)))


def yolov8n_maps(side: int = SIDE) -> StoredModel:
    """(1, 3, 640, 640) -> (1, 144, 80, 80), (1, 144, 40, 40), (1, 144, 20, 20), with scores about
    one half.
    """
    net = NetworkBuilder("yolov8n", SEED)
    return net.stored(*_maps(net, side, [0.0] * len(STRIDES)))


def yolov8n_sidecar() -> Sidecar:
    """How pictures and boxes are those of an Ultralytics export."""
    return read_sidecar(
        {
            "name": "yolov8n",
            "task": "detection",
            "description": "YOLOv8n, 640x640",
            "licence": "Apache-2.0",
            "source": "models/zoo/yolov8.py",
            "trained": False,
            "labels": labels("coco"),
            "input": {
                "name": "image",
                "size": [SIDE, SIDE],
                "resize": "letterbox",
                "color": "RGB",
                "scale": 1 / 255,
                "mean": [0.0, 0.0, 0.0],
                "std": [1.0, 1.0, 1.0],
                "pad_value": 114,
            },
            "head": {"type": "yolov8", "min_score": 0.25, "nms_iou": 0.45},
        }
    )


def _maps(net: NetworkBuilder, side: int, priors: Sequence[float]) -> list[NetworkTensor]:
    """The maps of the three scales; `priors` are the logits of a class at first."""
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
    return [
        _head(x, f"head{n}", prior)
        for n, (x, prior) in enumerate(zip((fine, middle, coarse), priors, strict=True), 3)
    ]


def _decoded(maps: Sequence[NetworkTensor]) -> NetworkTensor:
    """One list of boxes: each distance is the mean of its bins' distribution, in cells."""
    net = maps[0].network
    sides = [x.shape[2] for x in maps]
    count = sum(side * side for side in sides)
    flat = [_reshaped(x, f"{x.name}_flat", (*x.shape[:2], x.shape[2] ** 2)) for x in maps]
    bins, logits = net.split("list_split", net.concat("list", flat, axis=2), (4 * BINS, CLASSES))
    apart = _reshaped(bins, "bins", (1, 4, BINS, count))
    shape = (1, BINS, 4, count)
    turned = net.node("Transpose", "bins_first", [apart.name], shape, perm=[0, 2, 1, 3])
    likely = net.node("Softmax", "bins_likely", [turned.name], shape, axis=1)
    places = np.arange(BINS, dtype=np.float32).reshape(1, BINS, 1, 1)
    weights = net.constant("distances.weight", places)
    mean = net.node("Conv", "distances_map", [likely.name, weights], (1, 1, 4, count))
    distances = _reshaped(mean, "distances", (1, 4, count))
    before, after = net.split("distances_split", distances, (2, 2))
    centres = net.constant("anchors", _centres(sides))
    low = net.node("Sub", "low", [centres, before.name], before.shape)
    high = net.node("Add", "high", [centres, after.name], after.shape)
    both = low.add("low_high", high)
    middle = net.node("Div", "centre", [both.name, constant(net, 2.0)], both.shape)
    size = net.node("Sub", "size", [high.name, low.name], high.shape)
    cells = net.concat("boxes_in_cells", [middle, size])
    strides = np.repeat(np.array(STRIDES, np.float32), [side * side for side in sides])
    scale = net.constant("strides", strides[None])
    boxes = net.node("Mul", "boxes", [cells.name, scale], cells.shape)
    scores = net.node("Sigmoid", "scores", [logits.name], logits.shape)
    return net.concat("output0", [boxes, scores])


def _reshaped(x: NetworkTensor, name: str, shape: tuple[int, ...]) -> NetworkTensor:
    sizes = x.network.integers(f"{name}.shape", shape)
    return x.network.node("Reshape", name, [x.name, sizes], shape)


def _centres(sides: Sequence[int]) -> NDArray[np.float32]:
    """x and y (1, 2, cells) of the middle of every cell, in cells of its scale."""
    grids = [np.mgrid[0:side, 0:side][::-1].reshape(2, -1) + 0.5 for side in sides]
    return np.concatenate(grids, axis=1)[None].astype(np.float32)


def _conv(
    x: NetworkTensor, name: str, channels: int, kernel: int, stride: int = 1
) -> NetworkTensor:
    return silu(x.conv(name, channels, square(kernel, stride), bias=False).norm(scale=SILU_GAIN))


def _c2f(
    x: NetworkTensor, name: str, channels: int, depth: int, *, residual: bool = False
) -> NetworkTensor:
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


def _fast_pyramid_pool(x: NetworkTensor, name: str) -> NetworkTensor:
    channels = x.shape[1]
    maps = [_conv(x, f"{name}_in", channels // 2, 1)]
    for index in (1, 2, 3):
        maps.append(maps[-1].max_pool(f"{name}_pool{index}", square(5)))
    return _conv(x.network.concat(f"{name}_concat", maps), f"{name}_out", channels, 1)


def _head(x: NetworkTensor, name: str, prior: float) -> NetworkTensor:
    boxes_inside, classes_inside = max(16, CHANNELS[2] // 4, 4 * BINS), max(CHANNELS[2], CLASSES)
    boxes = _branch(x, f"{name}_box", boxes_inside, 4 * BINS)
    classes = _branch(x, f"{name}_class", classes_inside, CLASSES, prior)
    return x.network.concat(name, [boxes, classes])


def _branch(
    x: NetworkTensor, name: str, inside: int, channels: int, about: float = 0.0
) -> NetworkTensor:
    y = _conv(_conv(x, f"{name}_a", inside, 3), f"{name}_b", inside, 3)
    return y.conv(name, channels, square(1), bias_about=about)
