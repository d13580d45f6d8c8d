"""YOLOv3-tiny (Redmon and Farhadi, 2018; Darknet's yolov3-tiny.cfg), for COCO's 80 classes."""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.tensors.windows import Window
from models.zoo.layers import upsample

SEED = 30
SIDE = 416
SLOPE = 0.1
ANCHORS = 3  # for each of the two maps
CLASSES = 80
HEAD_CHANNELS = ANCHORS * (5 + CLASSES)
STAGES = (16, 32, 64, 128, 256)


def yolov3_tiny() -> StoredModel:
    """(1, 3, 416, 416) -> (1, 255, 13, 13) and (1, 255, 26, 26), before any sigmoid."""
    net = NetworkBuilder("yolov3_tiny", SEED)
    x = fine = net.input("image", (1, 3, SIDE, SIDE))
    for number, channels in enumerate(STAGES, start=1):
        x = fine = _conv(x, f"conv{number}", channels, 3)
        x = x.max_pool(f"pool{number}", square(2, 2))
    x = _conv(x, "conv6", 512, 3)
    # Darknet's pool of stride 1 keeps the map's size with a pad at its end.
    x = x.max_pool("pool6", (Window(2, 1, 1, 0, 1),) * 2)
    x = _conv(_conv(x, "conv7", 1024, 3), "conv8", 256, 1)
    coarse = _conv(x, "conv9", 512, 3).conv("coarse", HEAD_CHANNELS, square(1))
    up = upsample(_conv(x, "conv11", 128, 1), "up", 2)
    y = _conv(net.concat("route", [up, fine]), "conv12", 256, 3)
    return net.stored(coarse, y.conv("fine", HEAD_CHANNELS, square(1)))


def _conv(x: NetworkTensor, name: str, channels: int, kernel: int) -> NetworkTensor:
    return x.conv(name, channels, square(kernel), bias=False).norm().leaky_relu(SLOPE)
