"""Seeded random layers and fused blocks to measure on a device [AOFL, section 4.4].

Layers of each type are drawn over the range that tiles of real networks have: kernels, strides,
channels, widths, and strips of a few rows. Their FLOPs are drawn between bounds that `Sampling`
raises as the device proves faster.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coordinator.costs.sketch import Measurable, ProgramBuilder

# Widths of the maps of common networks, 224 or 416 pixels wide, after 0 to 5 halvings.
_WIDTHS = (7, 13, 14, 26, 28, 52, 56, 104, 112, 208, 224)
_CHANNELS = (16, 32, 64, 128, 256, 512)
# Fused blocks of convolutions, and layers of transformers.
BLOCK, LAYER = "block", "layer"
# Of vision transformers: tokens of a picture or a window, their widths, heads, and a head's width.
_TOKENS = (49, 64, 196, 197, 400, 1600)
_TOKEN_WIDTHS = (64, 128, 192, 256, 384, 768, 1024)
_HEADS, _HEAD_WIDTHS = (1, 2, 3, 4, 8, 12), (16, 32, 64)
_MOST_TOKENS = 4096
# Elements of a map and of a fully connected layer: 16 MB and 100 MB.
_MOST_ELEMENTS = 4_000_000
# Networks use 5x5 and 7x7 kernels on large maps; on small ones much of the window would be padding.
_WIDTH_OF_LARGE_KERNELS = 28
_MOST_WEIGHTS = 25_000_000
_LEAST_BLOCK_ROWS = 4
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Sample:
    """A program to measure: a single node of `kind`, a fused block, or a transformer's layer."""

    kind: str
    what: Measurable

    @property
    def is_block(self) -> bool:
        """Whether it calibrates the device's factors rather than a layer type."""
        return self.kind in (BLOCK, LAYER)

    @property
    def flop(self) -> int:
        """FLOPs of one run."""
        return sum(work.flop for work in self.what.works)


def draw(kind: str, rng: random.Random, flop: float) -> Sample:
    """A random sample of about `flop` FLOPs, or the nearest of several if maps cannot be so
    small.
    """
    best: Measurable | None = None
    best_ratio = float("inf")
    for _ in range(_ATTEMPTS):
        found = DRAWS[kind](rng, flop)
        if found is None:
            continue
        done = max(1, sum(work.flop for work in found.works))
        ratio = max(done / flop, flop / done)
        if ratio < best_ratio:
            best, best_ratio = found, ratio
        if ratio < 2:
            break
    assert best is not None, "every kind has samples of every size"
    return Sample(kind, best)


def _rows(rng: random.Random, flop: float, flop_per_row: float, width: int) -> int:
    """Rows of a map of this width that come nearest to `flop`."""
    rows = round(flop / flop_per_row * rng.uniform(0.8, 1.25))
    return min(max(rows, 1), max(width, 32))


def _conv(rng: random.Random, flop: float, kernel: int, groups: int = 1) -> Measurable | None:
    """A convolution; `groups` 0 means depthwise."""
    width, stride = rng.choice(_WIDTHS), rng.choice((1, 1, 1, 2))
    inputs, outputs = rng.choice((3, *_CHANNELS, 1024)), rng.choice((*_CHANNELS, 1024, 2048))
    if groups != 1:
        inputs = outputs = rng.choice(_CHANNELS)
    groups = groups or inputs
    if kernel > 3 and width < _WIDTH_OF_LARGE_KERNELS:
        return None
    per_row = 2 * kernel**2 * inputs / groups * outputs * max(1, width // stride)
    rows = (_rows(rng, flop, per_row, width) - 1) * stride + kernel
    if rows * width * max(inputs, outputs) > _MOST_ELEMENTS:
        return None
    sketch = ProgramBuilder(1, inputs, rows, width)
    sketch.conv(outputs, kernel, stride, groups)
    return sketch.measurable()


def _map(rng: random.Random, flop: float, flop_per_element: float) -> tuple[int, int, int] | None:
    width, channels = rng.choice(_WIDTHS), rng.choice(_CHANNELS)
    rows = _rows(rng, flop, flop_per_element * width * channels, width)
    if rows * width * channels > _MOST_ELEMENTS:
        return None
    return channels, rows, width


def _pool(rng: random.Random, flop: float) -> Measurable | None:
    kernel, stride = rng.choice(((2, 2), (3, 2), (3, 1), (2, 2)))
    size = _map(rng, flop, kernel**2 / stride**2)
    if size is None:
        return None
    channels, rows, width = size
    sketch = ProgramBuilder(1, channels, max(rows, kernel), width)
    op = rng.choice(("MaxPool", "MaxPool", "AveragePool"))
    sketch.add(op, kernel_shape=[kernel] * 2, strides=[stride] * 2)
    return sketch.measurable()


def _elementwise(rng: random.Random, flop: float) -> Measurable | None:
    size = _map(rng, flop, 1.0)
    if size is None:
        return None
    sketch = ProgramBuilder(1, *size)
    if rng.random() < 0.5:
        sketch.add("Add", sketch.extra_input(1, *size))
    else:
        sketch.add(rng.choice(("Relu", "LeakyRelu")))
    return sketch.measurable()


def _norm(rng: random.Random, flop: float) -> Measurable | None:
    size = _map(rng, flop, 1.0)
    if size is None:
        return None
    sketch = ProgramBuilder(1, *size)
    sketch.norm()
    return sketch.measurable()


def _concat(rng: random.Random, flop: float) -> Measurable | None:
    size = _map(rng, flop, 2.0)
    if size is None:
        return None
    channels, rows, width = size
    sketch = ProgramBuilder(1, channels, max(2, rows // 2 * 2), max(2, width // 2 * 2))
    what = rng.choice(("concat", "concat", "space to depth", "transpose"))
    if what == "concat":
        other = sketch.extra_input(1, channels, max(2, rows // 2 * 2), max(2, width // 2 * 2))
        sketch.add("Concat", other, axis=1)
    elif what == "transpose":
        sketch.add("Transpose", perm=[0, 2, 3, 1])  # as where tokens are made of a map
    else:
        sketch.add("SpaceToDepth", blocksize=2)
    return sketch.measurable()


def _tokens(rng: random.Random, flop: float, flop_per_token: float) -> int:
    """Tokens that come nearest to `flop`."""
    return min(max(round(flop / flop_per_token * rng.uniform(0.8, 1.25)), 1), _MOST_TOKENS)


def _softmax(rng: random.Random, flop: float) -> Measurable | None:
    heads, keys = rng.choice(_HEADS), rng.choice(_TOKENS)
    rows = _tokens(rng, flop, float(heads * keys))
    if heads * rows * keys > _MOST_ELEMENTS:
        return None
    sketch = ProgramBuilder(1, heads, rows, keys)
    sketch.add("Softmax", axis=-1)
    return sketch.measurable()


def _layer_norm(rng: random.Random, flop: float) -> Measurable | None:
    width = rng.choice(_TOKEN_WIDTHS)
    sketch = ProgramBuilder(1, _tokens(rng, flop, float(width)), width)
    sketch.add("LayerNormalization", sketch.weight(width), sketch.weight(width), axis=-1)
    return sketch.measurable()


def _product(rng: random.Random, flop: float) -> Measurable | None:
    """Tokens times weights; or queries times keys of each head, or scores times values."""
    if rng.random() < 0.6:
        width, outputs = rng.choice(_TOKEN_WIDTHS), rng.choice((*_TOKEN_WIDTHS, 2304, 3072))
        sketch = ProgramBuilder(1, _tokens(rng, flop, 2.0 * width * outputs), width)
        sketch.add("MatMul", sketch.weight(width, outputs))
        return sketch.measurable()
    heads, keys, width = rng.choice(_HEADS), rng.choice(_TOKENS), rng.choice(_HEAD_WIDTHS)
    queries = _tokens(rng, flop, 2.0 * heads * keys * width)
    if heads * queries * max(keys, width) > _MOST_ELEMENTS:
        return None
    inner, outer = rng.choice(((width, keys), (keys, width)))
    sketch = ProgramBuilder(1, heads, queries, inner)
    sketch.add("MatMul", sketch.extra_input(1, heads, inner, outer))
    return sketch.measurable()


def _resize(rng: random.Random, flop: float) -> Measurable | None:
    mode = rng.choice(("nearest", "nearest", "linear"))
    size = _map(rng, flop, 4.0 if mode == "nearest" else 28.0)
    if size is None:
        return None
    channels, rows, width = size
    # One row is not enough to interpolate between rows.
    sketch = ProgramBuilder(1, channels, max(2, rows), width)
    sketch.resize(mode)
    return sketch.measurable()


def _gemm(rng: random.Random, flop: float) -> Measurable | None:
    inputs = rng.choice((256, 512, 1024, 2048, 4096, 6272, 12544))
    outputs = min(max(round(flop / (2 * inputs)), 10), 4096, _MOST_WEIGHTS // inputs)
    sketch = ProgramBuilder(1, inputs)
    sketch.add("Gemm", sketch.weight(outputs, inputs), sketch.weight(outputs), transB=1)
    return sketch.measurable()


def _block(rng: random.Random, flop: float) -> Measurable | None:
    """Two to four layers of one of three families: plain, normalised, residual."""
    family = rng.choice(("plain", "normalised", "residual"))
    width = rng.choice(_WIDTHS)
    channels = rng.choice((32, 64, 128, 256, 512)) * (2 if family == "residual" else 1)
    layers = rng.randint(2, 4)
    narrow = channels // 4
    taps = {
        "plain": 9 * channels**2 * layers,
        "normalised": (5 * channels**2) * layers,
        "residual": 2 * channels * narrow + 9 * narrow**2,
    }[family]
    rows = max(_LEAST_BLOCK_ROWS, _rows(rng, flop, 2.0 * taps * width, width))
    if rows * width * channels > _MOST_ELEMENTS:
        return None
    sketch = ProgramBuilder(1, channels, rows + 2 * layers, width)
    {"plain": _plain, "normalised": _normalised, "residual": _residual}[family](sketch, layers)
    return sketch.measurable()


def _layer(rng: random.Random, flop: float) -> Measurable | None:
    """The steps of a transformer's layer on its tokens, or those of its attention."""
    if rng.random() < 0.6:
        width = rng.choice(_TOKEN_WIDTHS)
        tokens = _tokens(rng, flop, 16.0 * width * width)
        sketch = ProgramBuilder(1, tokens, width)
        entry = sketch.extra_input(1, tokens, width)
        sketch.add("LayerNormalization", sketch.weight(width), sketch.weight(width), axis=-1)
        for inputs, outputs in ((width, 4 * width), (4 * width, width)):
            sketch.add("MatMul", sketch.weight(inputs, outputs))
            sketch.add("Add", sketch.weight(outputs))
            if outputs > width:
                sketch.gelu()
        sketch.add("Add", entry)
        return sketch.measurable()
    heads, keys, width = rng.choice(_HEADS), rng.choice(_TOKENS), rng.choice(_HEAD_WIDTHS)
    queries = _tokens(rng, flop, 4.0 * heads * keys * width)
    if heads * queries * max(keys, width) > _MOST_ELEMENTS:
        return None
    sketch = ProgramBuilder(1, heads, queries, width)
    sketch.add("MatMul", sketch.extra_input(1, heads, width, keys))
    sketch.add("Mul", sketch.constant(width**-0.5))
    sketch.add("Softmax", axis=-1)
    sketch.add("MatMul", sketch.extra_input(1, heads, keys, width))
    return sketch.measurable()


def _plain(sketch: ProgramBuilder, layers: int) -> None:
    channels = sketch.channels
    for _ in range(layers):
        sketch.conv(channels, 3)
        sketch.add("Relu")
    sketch.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])


def _normalised(sketch: ProgramBuilder, layers: int) -> None:
    channels = sketch.channels
    for layer in range(layers):
        sketch.conv(channels, 3 if layer % 2 else 1)
        sketch.norm()
        sketch.add("LeakyRelu", alpha=0.1)


def _residual(sketch: ProgramBuilder, layers: int) -> None:
    channels = sketch.channels
    _, _, rows, width = sketch.shape
    entry = sketch.extra_input(1, channels, rows - 2, width)
    narrow = channels // 4
    for kernel, outputs in ((1, narrow), (3, narrow), (1, channels)):
        sketch.conv(outputs, kernel)
        sketch.norm()
        if outputs == narrow:
            sketch.add("Relu")
    sketch.add("Add", entry)
    sketch.add("Relu")


DRAWS: Mapping[str, Callable[[random.Random, float], Measurable | None]] = {
    "convolution": lambda rng, flop: _conv(rng, flop, rng.choice((3, 3, 3, 5, 7))),
    "pointwise": lambda rng, flop: _conv(rng, flop, 1),
    "grouped": lambda rng, flop: _conv(rng, flop, 3, groups=rng.choice((2, 4, 8))),
    "depthwise": lambda rng, flop: _conv(rng, flop, rng.choice((3, 3, 5)), groups=0),
    "pooling": _pool,
    "fully_connected": _gemm,
    "elementwise": _elementwise,
    "normalisation": _norm,
    "concat": _concat,
    "resize": _resize,
    "product": _product,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    BLOCK: _block,
    LAYER: _layer,
}
