"""DenseNet-121 (Huang et al., 2017): every layer reads the maps of all layers before it."""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel

SEED = 121
SIDE = 224
CLASSES = 1000
GROWTH = 32
BLOCKS = (6, 12, 24, 16)


def densenet121() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    net = NetworkBuilder("densenet121", SEED)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = x.conv("conv1", 2 * GROWTH, square(7, 2), bias=False).norm().relu()
    x = x.max_pool("pool1", square(3, 2))
    for block, count in enumerate(BLOCKS, start=1):
        for index in range(1, count + 1):
            x = _layer(x, f"dense{block}_{index}")
        if block < len(BLOCKS):
            x = _transition(x, f"transition{block}")
    x = x.norm().relu().global_average_pool("pool").flatten("flatten")
    return net.stored(x.gemm("fc", CLASSES))


def _layer(x: NetworkTensor, name: str) -> NetworkTensor:
    """Normalised before each convolution: bottleneck, then 3x3, concatenated with the input."""
    y = x.norm().relu().conv(f"{name}_1x1", 4 * GROWTH, square(1), bias=False)
    y = y.norm().relu().conv(f"{name}_3x3", GROWTH, square(3), bias=False)
    return x.network.concat(name, [x, y])


def _transition(x: NetworkTensor, name: str) -> NetworkTensor:
    y = x.norm().relu().conv(name, x.shape[1] // 2, square(1), bias=False)
    return y.average_pool(f"{name}_pool", square(2, 2))
