"""AlexNet (Krizhevsky, "One weird trick", 2014): the single-tower form, without normalisation."""

from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.stored import StoredModel

SEED = 12
SIDE = 224
CLASSES = 1000


def alexnet() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    net = NetworkBuilder("alexnet", SEED)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = x.conv("conv1", 64, square(11, 4, pad=2)).relu().max_pool("pool1", square(3, 2, pad=0))
    x = x.conv("conv2", 192, square(5)).relu().max_pool("pool2", square(3, 2, pad=0))
    x = x.conv("conv3", 384, square(3)).relu()
    x = x.conv("conv4", 256, square(3)).relu()
    x = x.conv("conv5", 256, square(3)).relu().max_pool("pool5", square(3, 2, pad=0))
    x = x.flatten("flatten")
    x = x.gemm("fc6", 4096).relu()
    x = x.gemm("fc7", 4096).relu()
    return net.stored(x.gemm("fc8", CLASSES))
