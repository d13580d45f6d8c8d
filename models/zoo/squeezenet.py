"""SqueezeNet 1.0 (Iandola et al., 2016): fire modules; sizes of pools are rounded up."""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import rounded_up_pool

SEED = 10
SIDE = 224
CLASSES = 1000
# Squeeze and expand channels of fire2 .. fire9: table 1 of the paper.
FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
POOL_AFTER = (4, 8)


def squeezenet() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    net = NetworkBuilder("squeezenet", SEED)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = _pooled(x.conv("conv1", 96, square(7, 2, pad=0)).relu(), "pool1")
    for number, (squeezed, expanded) in enumerate(FIRES, start=2):
        x = _fire(x, f"fire{number}", squeezed, expanded)
        if number in POOL_AFTER:
            x = _pooled(x, f"pool{number}")
    x = x.conv("conv10", CLASSES, square(1)).relu()
    return net.stored(x.global_average_pool("pool10").flatten("flatten"))


def _fire(x: NetworkTensor, name: str, squeezed: int, expanded: int) -> NetworkTensor:
    x = x.conv(f"{name}_squeeze", squeezed, square(1)).relu()
    one = x.conv(f"{name}_expand1x1", expanded, square(1)).relu()
    three = x.conv(f"{name}_expand3x3", expanded, square(3)).relu()
    return x.network.concat(name, [one, three])


def _pooled(x: NetworkTensor, name: str) -> NetworkTensor:
    return x.max_pool(name, rounded_up_pool(3, 2, x.shape[2]))
