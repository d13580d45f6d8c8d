"""Layers that several networks of the zoo share, beyond the builder's own.

The gains keep a network's scale. He weights make unit variance of an input of mean square 1/2,
which is what ReLU leaves of a unit normal; a normalisation before another activation is scaled by
that activation's gain. Swishes are linear far from zero and halve near it, so that no gain keeps
every scale: theirs were chosen by running the networks.
"""

from collections.abc import Sequence

import numpy as np

from models.onnx_file.builder import EPSILON, NORM_SPREAD, NetworkBuilder, NetworkTensor, Windows
from models.tensors.windows import Window

LINEAR_GAIN = 0.7  # nothing follows, and E[z^2] = 1
SILU_GAIN = 1.05
HARD_SWISH_GAIN = 1.0


def constant(net: NetworkBuilder, value: float) -> str:
    """The name of a scalar, added to the network at its first use."""
    name = f"constant_{value:g}"
    return name if net.has(name) else net.constant(name, np.array(value, np.float32))


def relu6(x: NetworkTensor) -> NetworkTensor:
    """min(max(x, 0), 6)."""
    net = x.network
    return x.attached("Clip", "relu6", [constant(net, 0.0), constant(net, 6.0)])


def hard_swish(x: NetworkTensor) -> NetworkTensor:
    """x * min(max(x + 3, 0), 6) / 6."""
    return x.attached("HardSwish", "hswish")


def sigmoid(x: NetworkTensor) -> NetworkTensor:
    """1 / (1 + exp(-x))."""
    return x.attached("Sigmoid", "sigmoid")


def silu(x: NetworkTensor) -> NetworkTensor:
    """x * sigmoid(x)."""
    gate = sigmoid(x)
    return x.attached("Mul", "silu", [gate.name])


def gelu(x: NetworkTensor) -> NetworkTensor:
    """x * (1 + erf(x / sqrt(2))) / 2, in the operators that exporters write."""
    net = x.network
    y = x.attached("Div", "gelu_scaled", [constant(net, 2**0.5)])
    y = y.attached("Erf", "gelu_erf")
    y = y.attached("Add", "gelu_shifted", [constant(net, 1.0)])
    y = x.attached("Mul", "gelu_gated", [y.name])
    return y.attached("Mul", "gelu", [constant(net, 0.5)])


def depthwise(
    x: NetworkTensor, name: str, windows: Windows, *, bias: bool = False
) -> NetworkTensor:
    """A convolution of every channel by itself."""
    channels = x.shape[1]
    return x.conv(name, channels, windows, groups=channels, bias=bias)


def instance_norm(x: NetworkTensor) -> NetworkTensor:
    """Every channel of every image to mean 0 and variance 1 over its map, then scale and shift."""
    net, channels, name = x.network, (x.shape[1],), f"{x.layer}_in"
    weights = [
        net.uniform_weight(f"{name}.scale", channels, about=1.0, spread=NORM_SPREAD),
        net.uniform_weight(f"{name}.shift", channels, about=0.0, spread=NORM_SPREAD),
    ]
    return x.attached("InstanceNormalization", "in", weights, epsilon=EPSILON)


def local_response_norm(x: NetworkTensor, name: str) -> NetworkTensor:
    """Each value divided by (1 + 1e-4 / 5 * sum of squares over five channels) ^ 0.75."""
    return x.network.node("LRN", name, [x.name], x.shape, size=5, alpha=1e-4, beta=0.75, bias=1.0)


def channel_norm(x: NetworkTensor, name: str, epsilon: float) -> NetworkTensor:
    """Every pixel to mean 0 and variance 1 over its channels, then scale and shift: layer
    normalisation of a map whose channels come first.
    """
    net, shape, channels = x.network, x.shape, (x.shape[1], 1, 1)
    one = (shape[0], 1, *shape[2:])
    mean = net.node("ReduceMean", f"{name}_mean", [x.name], one, axes=[1], keepdims=1)
    centred = net.node("Sub", f"{name}_centred", [x.name, mean.name], shape)
    square_ = net.node("Pow", f"{name}_square", [centred.name, constant(net, 2.0)], shape)
    variance = net.node("ReduceMean", f"{name}_variance", [square_.name], one, axes=[1], keepdims=1)
    eps = constant(net, epsilon)
    floored = net.node("Add", f"{name}_floored", [variance.name, eps], one)
    deviation = net.node("Sqrt", f"{name}_deviation", [floored.name], one)
    unit = net.node("Div", f"{name}_unit", [centred.name, deviation.name], shape)
    scale = net.uniform_weight(f"{name}.scale", channels, about=1.0, spread=NORM_SPREAD)
    shift = net.uniform_weight(f"{name}.shift", channels, about=0.0, spread=NORM_SPREAD)
    scaled = net.node("Mul", f"{name}_scaled", [unit.name, scale], shape)
    return net.node("Add", name, [scaled.name, shift], shape)


def conv_transpose(x: NetworkTensor, name: str, channels: int, factor: int) -> NetworkTensor:
    """An "up-convolution": every pixel becomes factor x factor pixels."""
    net, (batch, depth, rows, cols) = x.network, x.shape
    limit = (6 / depth) ** 0.5  # each output pixel reads one input pixel
    inputs = [
        x.name,
        net.uniform_weight(
            f"{name}.weight", (depth, channels, factor, factor), about=0.0, spread=limit
        ),
        net.uniform_weight(f"{name}.bias", (channels,), about=0.0, spread=0.05),
    ]
    shape = (batch, channels, rows * factor, cols * factor)
    sides = [factor, factor]
    return net.node("ConvTranspose", name, inputs, shape, kernel_shape=sides, strides=sides)


def upsample(x: NetworkTensor, name: str, factor: int) -> NetworkTensor:
    """Every pixel `factor` x `factor` times."""
    scales = x.network.constant(f"{name}.scales", np.array([1, 1, factor, factor], np.float32))
    batch, channels, rows, cols = x.shape
    return x.network.node(
        "Resize",
        name,
        [x.name, "", scales],
        (batch, channels, rows * factor, cols * factor),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def bilinear(x: NetworkTensor, name: str, size: Sequence[int]) -> NetworkTensor:
    """The map at another size, corner pixels on corner pixels as DeepLab resizes."""
    net, shape = x.network, (*x.shape[:2], *size)
    sizes = net.integers(f"{name}.size", shape)
    return net.node(
        "Resize",
        name,
        [x.name, "", "", sizes],
        shape,
        mode="linear",
        coordinate_transformation_mode="align_corners",
    )


def depth_to_space(x: NetworkTensor, name: str, block: int) -> NetworkTensor:
    """(N, C, H, W) to (N, C / block^2, H * block, W * block), the sub-pixel shuffle (CRD)."""
    batch, channels, rows, cols = x.shape
    shape = (batch, channels // block**2, rows * block, cols * block)
    return x.network.node("DepthToSpace", name, [x.name], shape, blocksize=block, mode="CRD")


def reflection_pad(x: NetworkTensor, name: str, pad: int) -> NetworkTensor:
    """The map with `pad` mirrored rows and columns on every side."""
    net, (batch, channels, rows, cols) = x.network, x.shape
    pads = net.integers(f"{name}.pads", [0, 0, pad, pad, 0, 0, pad, pad])
    shape = (batch, channels, rows + 2 * pad, cols + 2 * pad)
    return net.node("Pad", name, [x.name, pads], shape, mode="reflect")


def centre_crop(x: NetworkTensor, name: str, size: Sequence[int]) -> NetworkTensor:
    """The middle `size` rows and columns."""
    net = x.network
    starts = [(have - want) // 2 for have, want in zip(x.shape[2:], size, strict=True)]
    inputs = [
        x.name,
        net.integers(f"{name}.starts", starts),
        net.integers(f"{name}.ends", [a + b for a, b in zip(starts, size, strict=True)]),
        net.integers(f"{name}.axes", [2, 3]),
    ]
    return net.node("Slice", name, inputs, (*x.shape[:2], *size))


def channel_shuffle(x: NetworkTensor, name: str, groups: int) -> NetworkTensor:
    """Channel g * (C / groups) + k becomes channel k * groups + g."""
    net, (batch, channels, rows, cols) = x.network, x.shape
    apart = (batch, groups, channels // groups, rows, cols)
    turned = (batch, channels // groups, groups, rows, cols)
    first = net.integers(f"{name}_apart.shape", apart)
    y = net.node("Reshape", f"{name}_apart", [x.name, first], apart)
    y = net.node("Transpose", f"{name}_turned", [y.name], turned, perm=[0, 2, 1, 3, 4])
    return net.node("Reshape", name, [y.name, net.integers(f"{name}.shape", x.shape)], x.shape)


def same_at_stride(kernel: int, stride: int, size: int) -> Windows:
    """TensorFlow's "same" padding: as little as gives ceil(size / stride) outputs, the odd pixel
    at the end.
    """
    total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    window = Window(kernel, stride, 1, total // 2, total - total // 2)
    return window, window


def rounded_up_pool(kernel: int, stride: int, size: int) -> Windows:
    """A pool's window whose last position may hang over the map, as Caffe rounds sizes."""
    over = (-(size - kernel)) % stride
    window = Window(kernel, stride, 1, 0, over)
    return window, window
