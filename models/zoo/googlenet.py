"""GoogLeNet, Inception v1 (Szegedy et al., 2015), without its auxiliary classifiers."""

from typing import NamedTuple

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import local_response_norm, rounded_up_pool

SEED = 15
SIDE = 224
CLASSES = 1000


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
POOL_AFTER = ("3b", "4e")


def googlenet() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    net = NetworkBuilder("googlenet", SEED)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = _pooled(x.conv("conv1", 64, square(7, 2)).relu(), "pool1")
    x = local_response_norm(x, "norm1").conv("conv2_reduce", 64, square(1)).relu()
    x = local_response_norm(x.conv("conv2", 192, square(3)).relu(), "norm2")
    x = _pooled(x, "pool2")
    for name, module in MODULES.items():
        x = _inception(x, f"inception_{name}", module)
        if name in POOL_AFTER:
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
