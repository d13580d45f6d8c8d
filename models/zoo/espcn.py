"""ESPCN (Shi et al., 2016), super-resolution by 3: three convolutions and a sub-pixel shuffle."""

from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import depth_to_space

SEED = 34
SIDE = 224
FACTOR = 3


def espcn() -> StoredModel:
    """Luminance (1, 1, 224, 224) -> (1, 1, 672, 672)."""
    net = NetworkBuilder("espcn", SEED)
    x = net.input("image", (1, 1, SIDE, SIDE))
    x = x.conv("conv1", 64, square(5)).attached("Tanh", "tanh")
    x = x.conv("conv2", 32, square(3)).attached("Tanh", "tanh")
    x = x.conv("conv3", FACTOR**2, square(3))
    return net.stored(depth_to_space(x, "shuffle", FACTOR))
