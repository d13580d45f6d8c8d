"""LeNet-5 (LeCun et al.) in the form that Caffe made common: six layers, ReLU, maxima."""

from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.stored import StoredModel

SEED = 5
SIDE = 28
CLASSES = 10


def lenet5() -> StoredModel:
    """(1, 1, 28, 28) -> logits (1, 10)."""
    net = NetworkBuilder("lenet5", SEED)
    x = net.input("image", (1, 1, SIDE, SIDE))
    x = x.conv("conv1", 20, square(5, pad=0)).relu().max_pool("pool1", square(2, 2))
    x = x.conv("conv2", 50, square(5, pad=0)).relu().max_pool("pool2", square(2, 2))
    x = x.flatten("flatten").gemm("ip1", 500).relu()
    return net.stored(x.gemm("ip2", CLASSES))
