"""Classifiers from before layers were normalised in batches: LeNet-5, AlexNet, SqueezeNet and
GoogLeNet. The latter two round sizes of pools up, as Caffe does.
"""

from typing import NamedTuple

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import local_response_norm, rounded_up_pool

SIDE = 224
CLASSES = 1000
# Squeeze and expand channels of fire2 .. fire9: table 1 of the paper.
FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
FIRES_BEFORE_POOLS = (4, 8)


class Module(NamedTuple):
    """Channels of an inception module's branches, as the columns of the paper's table 1."""

    one: int
    three_in: int
    three: int
    five_in: int
    five: int
    pooled: int


MODULES = {
    "3a": Module(64, 96, 128, 16, 32, 32),
    "3b": Module(128, 128, 192, 32, 96, 64),
    "4a": Module(192, 96, 208, 16, 48, 64),
    "4b": Module(160, 112, 224, 24, 64, 64),
    "4c": Module(128, 128, 256, 24, 64, 64),
    "4d": Module(112, 144, 288, 32, 64, 64),
    "4e": Module(256, 160, 320, 32, 128, 128),
    "5a": Module(256, 160, 320, 32, 128, 128),
    "5b": Module(384, 192, 384, 48, 128, 128),
}
MODULES_BEFORE_POOLS = ("3b", "4e")


def lenet5() -> StoredModel:
    """LeNet-5 (LeCun et al.) in the form that Caffe made common: six layers, ReLU, maxima;
    (1, 1, 28, 28) -> logits (1, 10).
    """
    net = NetworkBuilder("lenet5", seed=5)
    x = net.input("image", (1, 1, 28, 28))
    x = x.conv("conv1", 20, square(5, pad=0)).relu().max_pool("pool1", square(2, 2))
    x = x.conv("conv2", 50, square(5, pad=0)).relu().max_pool("pool2", square(2, 2))
    x = x.flatten("flatten").gemm("ip1", 500).relu()
    return net.stored(x.gemm("ip2", 10))


def alexnet() -> StoredModel:
    """AlexNet (Krizhevsky, "One weird trick", 2014): the single-tower form, without normalisation;
    (1, 3, 224, 224) -> logits (1, 1000).
    """
    net = NetworkBuilder("alexnet", seed=12)
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


def squeezenet() -> StoredModel:
    """SqueezeNet 1.0 (Iandola et al., 2016): fire modules;
    (1, 3, 224, 224) -> logits (1, 1000).
    """
    net = NetworkBuilder("squeezenet", seed=10)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = _pooled(x.conv("conv1", 96, square(7, 2, pad=0)).relu(), "pool1")
    for number, (squeezed, expanded) in enumerate(FIRES, start=2):
        x = _fire(x, f"fire{number}", squeezed, expanded)
        if number in FIRES_BEFORE_POOLS:
            x = _pooled(x, f"pool{number}")
    x = x.conv("conv10", CLASSES, square(1)).relu()
    return net.stored(x.global_average_pool("pool10").flatten("flatten"))


def _fire(x: NetworkTensor, name: str, squeezed: int, expanded: int) -> NetworkTensor:
    x = x.conv(f"{name}_squeeze", squeezed, square(1)).relu()
    one = x.conv(f"{name}_expand1x1", expanded, square(1)).relu()
    three = x.conv(f"{name}_expand3x3", expanded, square(3)).relu()
    return x.network.concat(name, [one, three])


def googlenet() -> StoredModel:
    """GoogLeNet, Inception v1 (Szegedy et al., 2015), without its auxiliary classifiers;
    (1, 3, 224, 224) -> logits (1, 1000).
    """
    net = NetworkBuilder("googlenet", seed=15)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = _pooled(x.conv("conv1", 64, square(7, 2)).relu(), "pool1")
    x = local_response_norm(x, "norm1").conv("conv2_reduce", 64, square(1)).relu()
    x = local_response_norm(x.conv("conv2", 192, square(3)).relu(), "norm2")
    x = _pooled(x, "pool2")
    for name, module in MODULES.items():
        x = _inception(x, f"inception_{name}", module)
        if name in MODULES_BEFORE_POOLS:
            x = _pooled(x, f"pool{name[0]}")
    x = x.global_average_pool("pool5").flatten("flatten")
    return net.stored(x.gemm("fc", CLASSES))


def _inception(x: NetworkTensor, name: str, module: Module) -> NetworkTensor:
    one = x.conv(f"{name}_1x1", module.one, square(1)).relu()
    three = x.conv(f"{name}_3x3_reduce", module.three_in, square(1)).relu()
    three = three.conv(f"{name}_3x3", module.three, square(3)).relu()
    five = x.conv(f"{name}_5x5_reduce", module.five_in, square(1)).relu()
    five = five.conv(f"{name}_5x5", module.five, square(5)).relu()
    pooled = x.max_pool(f"{name}_pool", square(3))
    pooled = pooled.conv(f"{name}_pooled", module.pooled, square(1)).relu()
    return x.network.concat(name, [one, three, five, pooled])


def _pooled(x: NetworkTensor, name: str) -> NetworkTensor:
    return x.max_pool(name, rounded_up_pool(3, 2, x.shape[2]))
