"""Inception-v3 (Szegedy et al., 2016) without its auxiliary classifier."""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, Windows, square
from models.onnx_file.stored import StoredModel
from models.tensors.windows import Window

SEED = 3
SIDE = 299
CLASSES = 1000
# Channels of the pooled branch of each 35x35 module, and of the 7x7 branches of each 17x17 one.
POOLED_35 = (32, 64, 64)
INNER_17 = (128, 160, 160, 192)


def inceptionv3() -> StoredModel:
    """(1, 3, 299, 299) -> logits (1, 1000)."""
    net = NetworkBuilder("inceptionv3", SEED)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = _conv(x, "stem1", 32, square(3, 2, pad=0))
    x = _conv(x, "stem2", 32, square(3, pad=0))
    x = _conv(x, "stem3", 64, square(3)).max_pool("pool1", square(3, 2, pad=0))
    x = _conv(x, "stem4", 80, square(1))
    x = _conv(x, "stem5", 192, square(3, pad=0)).max_pool("pool2", square(3, 2, pad=0))
    for index, pooled in enumerate(POOLED_35, start=1):
        x = _module_35(x, f"a{index}", pooled)
    x = _reduction_35(x, "b1")
    for index, inner in enumerate(INNER_17, start=1):
        x = _module_17(x, f"c{index}", inner)
    x = _reduction_17(x, "d1")
    for index in (1, 2):
        x = _module_8(x, f"e{index}")
    x = x.global_average_pool("pool3").flatten("flatten")
    return net.stored(x.gemm("fc", CLASSES))


def _conv(x: NetworkTensor, name: str, channels: int, windows: Windows) -> NetworkTensor:
    return x.conv(name, channels, windows, bias=False).norm().relu()


def _oblong(rows: int, cols: int) -> Windows:
    """A rows x cols window that keeps the map's size."""
    return (Window(rows, 1, 1, rows // 2, rows // 2), Window(cols, 1, 1, cols // 2, cols // 2))


def _pooled(x: NetworkTensor, name: str, channels: int) -> NetworkTensor:
    return _conv(x.average_pool(f"{name}_pool", square(3)), f"{name}_pooled", channels, square(1))


def _module_35(x: NetworkTensor, name: str, pooled: int) -> NetworkTensor:
    one = _conv(x, f"{name}_1x1", 64, square(1))
    five = _conv(_conv(x, f"{name}_5x5a", 48, square(1)), f"{name}_5x5b", 64, square(5))
    double = _conv(_conv(x, f"{name}_3x3a", 64, square(1)), f"{name}_3x3b", 96, square(3))
    double = _conv(double, f"{name}_3x3c", 96, square(3))
    parts = [one, five, double, _pooled(x, name, pooled)]
    return x.network.concat(name, parts)


def _reduction_35(x: NetworkTensor, name: str) -> NetworkTensor:
    three = _conv(x, f"{name}_3x3", 384, square(3, 2, pad=0))
    double = _conv(_conv(x, f"{name}_3x3a", 64, square(1)), f"{name}_3x3b", 96, square(3))
    double = _conv(double, f"{name}_3x3c", 96, square(3, 2, pad=0))
    pool = x.max_pool(f"{name}_pool", square(3, 2, pad=0))
    return x.network.concat(name, [three, double, pool])


def _module_17(x: NetworkTensor, name: str, inner: int) -> NetworkTensor:
    across, down = _oblong(1, 7), _oblong(7, 1)
    one = _conv(x, f"{name}_1x1", 192, square(1))
    seven = _conv(x, f"{name}_7x7a", inner, square(1))
    seven = _conv(seven, f"{name}_7x7b", inner, across)
    seven = _conv(seven, f"{name}_7x7c", 192, down)
    double = _conv(x, f"{name}_7x7d", inner, square(1))
    double = _conv(double, f"{name}_7x7e", inner, down)
    double = _conv(double, f"{name}_7x7f", inner, across)
    double = _conv(double, f"{name}_7x7g", inner, down)
    double = _conv(double, f"{name}_7x7h", 192, across)
    parts = [one, seven, double, _pooled(x, name, 192)]
    return x.network.concat(name, parts)


def _reduction_17(x: NetworkTensor, name: str) -> NetworkTensor:
    three = _conv(
        _conv(x, f"{name}_3x3a", 192, square(1)), f"{name}_3x3b", 320, square(3, 2, pad=0)
    )
    seven = _conv(x, f"{name}_7x7a", 192, square(1))
    seven = _conv(seven, f"{name}_7x7b", 192, _oblong(1, 7))
    seven = _conv(seven, f"{name}_7x7c", 192, _oblong(7, 1))
    seven = _conv(seven, f"{name}_7x7d", 192, square(3, 2, pad=0))
    pool = x.max_pool(f"{name}_pool", square(3, 2, pad=0))
    return x.network.concat(name, [three, seven, pool])


def _module_8(x: NetworkTensor, name: str) -> NetworkTensor:
    one = _conv(x, f"{name}_1x1", 320, square(1))
    three = _forked(_conv(x, f"{name}_3x3a", 384, square(1)), f"{name}_3x3")
    double = _conv(_conv(x, f"{name}_3x3b", 448, square(1)), f"{name}_3x3c", 384, square(3))
    double = _forked(double, f"{name}_double")
    parts = [one, three, double, _pooled(x, name, 192)]
    return x.network.concat(name, parts)


def _forked(x: NetworkTensor, name: str) -> NetworkTensor:
    """1x3 and 3x1 side by side."""
    across = _conv(x, f"{name}_1x3", 384, _oblong(1, 3))
    down = _conv(x, f"{name}_3x1", 384, _oblong(3, 1))
    return x.network.concat(name, [across, down])
