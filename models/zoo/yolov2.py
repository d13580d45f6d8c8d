"""YOLOv2 (Redmon and Farhadi) on Darknet-19, for COCO's 80 classes and 5 anchors.

One departure: Darknet's reorg mixes rows of channels in an order of its own; SpaceToDepth is what
it was meant to be, costs the same, and can be cut into tiles.
"""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel

SEED = 2
SIDE = 416
SLOPE = 0.1
ANCHORS = 5
CLASSES = 80
HEAD_CHANNELS = ANCHORS * (5 + CLASSES)

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


def yolov2() -> StoredModel:
    """(1, 3, 416, 416) -> (1, 425, 13, 13): channel a * 85 + k of anchor a, before any sigmoid."""
    net = NetworkBuilder("yolov2", SEED)
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
    return net.stored(x.conv("conv22", HEAD_CHANNELS, square(1)))


def _conv(x: NetworkTensor, name: str, channels: int, kernel: int) -> NetworkTensor:
    return x.conv(name, channels, square(kernel), bias=False).norm().leaky_relu(SLOPE)
