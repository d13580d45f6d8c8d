"""YOLOv2 on Darknet-19, and YOLOv3-tiny (Redmon and Farhadi; Darknet's yolov3-tiny.cfg), for COCO's
80 classes.

One departure: Darknet's reorg mixes rows of channels in an order of its own; SpaceToDepth is what
it was meant to be, costs the same, and can be cut into tiles.
"""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.tensors.windows import Window
from models.zoo.layers import upsample

SIDE = 416
SLOPE = 0.1
# Of each anchor: a box, whether there is one, and what of COCO's it shows.
BOX_CHANNELS = 5 + 80

# Darknet-19 without its classifier, as (channels, kernel) of each convolution; a 2x2 maximum
# stands between stages.
STAGES = (
    ((32, 3),),
    ((64, 3),),
    ((128, 3), (64, 1), (128, 3)),
    ((256, 3), (128, 1), (256, 3)),
    ((512, 3), (256, 1), (512, 3), (256, 1), (512, 3)),
    ((1024, 3), (512, 1), (1024, 3), (512, 1), (1024, 3)),
)
# The passthrough leaves the last map of 26x26.
PASSTHROUGH_STAGE = 5
TINY_STAGES = (16, 32, 64, 128, 256)


def yolov2() -> StoredModel:
    """(1, 3, 416, 416) -> (1, 425, 13, 13): channel a * 85 + k of anchor a, before any sigmoid."""
    net = NetworkBuilder("yolov2", seed=2)
    x = net.input("image", (1, 3, SIDE, SIDE))
    number = 0
    for stage, convolutions in enumerate(STAGES, start=1):
        for channels, kernel in convolutions:
            number += 1
            x = _conv(x, f"conv{number}", channels, kernel)
        if stage == PASSTHROUGH_STAGE:
            # At once, so that only its 13x13x256 result stays live, not the 26x26x512 map.
            passed = _conv(x, "passthrough", 64, 1).space_to_depth("passthrough_reorg", 2)
        if stage < len(STAGES):
            x = x.max_pool(f"pool{stage}", square(2, 2))
    x = _conv(x, "conv19", 1024, 3)
    x = _conv(x, "conv20", 1024, 3)
    x = _conv(net.concat("concat", [passed, x]), "conv21", 1024, 3)
    return net.stored(x.conv("conv22", 5 * BOX_CHANNELS, square(1)))


def yolov3_tiny() -> StoredModel:
    """(1, 3, 416, 416) -> (1, 255, 13, 13) and (1, 255, 26, 26), before any sigmoid."""
    net = NetworkBuilder("yolov3_tiny", seed=30)
    x = fine = net.input("image", (1, 3, SIDE, SIDE))
    for number, channels in enumerate(TINY_STAGES, start=1):
        x = fine = _conv(x, f"conv{number}", channels, 3)
        x = x.max_pool(f"pool{number}", square(2, 2))
    x = _conv(x, "conv6", 512, 3)
    # Darknet's pool of stride 1 keeps the map's size with a pad at its end.
    x = x.max_pool("pool6", (Window(2, 1, 1, 0, 1),) * 2)
    x = _conv(_conv(x, "conv7", 1024, 3), "conv8", 256, 1)
    coarse = _conv(x, "conv9", 512, 3).conv("coarse", 3 * BOX_CHANNELS, square(1))
    up = upsample(_conv(x, "conv11", 128, 1), "up", 2)
    y = _conv(net.concat("route", [up, fine]), "conv12", 256, 3)
    return net.stored(coarse, y.conv("fine", 3 * BOX_CHANNELS, square(1)))


def _conv(x: NetworkTensor, name: str, channels: int, kernel: int) -> NetworkTensor:
    return x.conv(name, channels, square(kernel), bias=False).norm().leaky_relu(SLOPE)
