"""U-Net (Ronneberger et al., 2015) as published: unpadded convolutions, so that the contracting
path's maps are cropped before they join the expanding one.
"""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import centre_crop, conv_transpose

SEED = 31
# The figure of the paper shows 572; like any side of 188 + 16 k, this one halves evenly.
SIDE = 252
CHANNELS = (64, 128, 256, 512)
DEEPEST = 1024
CLASSES = 2


def unet(side: int = SIDE) -> StoredModel:
    """(1, 1, side, side) -> logits (1, 2, side - 184, side - 184)."""
    net = NetworkBuilder("unet", SEED)
    x = net.input("image", (1, 1, side, side))
    passed = []
    for level, channels in enumerate(CHANNELS, start=1):
        x = _twice(x, f"down{level}", channels)
        passed.append(x)
        x = x.max_pool(f"pool{level}", square(2, 2))
    x = _twice(x, "bottom", DEEPEST)
    for level, channels in reversed(list(enumerate(CHANNELS, start=1))):
        x = conv_transpose(x, f"up{level}_conv", channels, 2)
        left = centre_crop(passed[level - 1], f"up{level}_crop", x.shape[2:])
        x = _twice(net.concat(f"up{level}_concat", [left, x]), f"up{level}", channels)
    return net.stored(x.conv("logits", CLASSES, square(1)))


def _twice(x: NetworkTensor, name: str, channels: int) -> NetworkTensor:
    x = x.conv(f"{name}_a", channels, square(3, pad=0)).relu()
    return x.conv(f"{name}_b", channels, square(3, pad=0)).relu()
