"""How ncnn computes each convolution: with or without Winograd's algorithm, by what that saves and
the memory that it takes, and in how many parts, so that none holds Python's lock for long while it
is loaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from math import ceil

import numpy as np

from models.tensors.arrays import Shape
from worker.engines.ncnn_layer import Layer

# ncnn's parameter for what a layer must not do, and its sign for Winograd's algorithm.
_MASK, _NO_WINOGRAD = 31, 1 << 6
# What a multiplication costs with tiles of so many elements, with their transformations; what it
# costs to read a weight from memory, and from a cache of this size.
_PRICES = {1: 1.0, 2: 1.2, 4: 1.5}
_READING, _READING_CACHED, _CACHE_BYTES = 10.0, 3.0, 1 << 20
# Nanoseconds of a thread to load a weight of a layer with such tiles, and the most for a layer.
_LOADING_NS = {1: 6.0, 2: 11.0, 4: 32.0}
_MOST_LOADING_NS = 20e6
# Every part more takes so much longer than the whole layer, which transforms its input once.
_PART = 0.06
# A 3x3 convolution with strides and dilations of 1, by ncnn's numbers of parameters.
_FOR_WINOGRAD = {1: 3, 11: 3, 2: 1, 12: 1, 3: 1, 13: 1}
_OUTPUTS, _WEIGHTS = 0, 6


def choose_algorithms(
    layers: Sequence[Layer], sizes: dict[str, Shape], threads: int, room_bytes: float
) -> tuple[list[Layer], int, int]:
    """The layers for so many threads, of which convolutions are computed by the algorithm that pays
    and in parts of their channels; the size of Winograd's tiles, which is the same for all layers
    of a net; and the bytes of a net's weights, to which Winograd's algorithm adds only what
    `room_bytes` leave. `sizes` has the shapes of all tensors, also of new ones.
    """
    plain_bytes = sum(array.nbytes for layer in layers for array in layer.weights)

    def total(tiles: Sequence[int]) -> float:
        return sum(map(_cost, layers, tiles, repeat(sizes), repeat(threads)))

    more_bytes = room_bytes - plain_bytes
    choices = {tile: _tiles(layers, tile, sizes, threads, more_bytes) for tile in (4, 2)}
    best = min(choices, key=lambda tile: total(choices[tile]))
    result: list[Layer] = []
    for layer, tile in zip(layers, choices[best], strict=True):
        if layer.kind != "Convolution":
            result.append(layer)
            continue
        if tile == 1 and _is_for_winograd(layer):
            layer.parameters[_MASK] = _NO_WINOGRAD
        result += _in_parts(layer, _parts(layer, tile, threads), sizes)
    return result, best, plain_bytes + sum(map(_more_bytes, layers, choices[best]))


def _is_for_winograd(layer: Layer) -> bool:
    return layer.kind == "Convolution" and _FOR_WINOGRAD.items() <= layer.parameters.items()


def _tiles(
    layers: Sequence[Layer],
    tile: int,
    sizes: Mapping[str, Shape],
    threads: int,
    left_bytes: float,
) -> list[int]:
    """The size of each layer's tiles in a net with tiles of this size; 1: it has none. They may add
    so many bytes, and go first to the layers in which a byte saves most time.
    """
    saved = {
        number: _cost(layer, 1, sizes, threads) - _cost(layer, tile, sizes, threads)
        for number, layer in enumerate(layers)
        if _is_for_winograd(layer)
    }
    more_bytes = {number: _more_bytes(layers[number], tile) for number in saved}
    tiles = [1] * len(layers)
    for number in sorted(saved, key=lambda n: saved[n] / more_bytes[n], reverse=True):
        if saved[number] > 0 and more_bytes[number] <= left_bytes:
            tiles[number] = tile
            left_bytes -= more_bytes[number]
    return tiles


def _more_bytes(layer: Layer, tile: int) -> int:
    """What the weights take in tiles of this size beyond what they take without: as many elements
    as a tile of input has instead of nine.
    """
    return layer.weights[1].nbytes * ((tile + 2) ** 2 - 9) // 9 if tile > 1 else 0


def _parts(layer: Layer, tile: int, threads: int) -> int:
    return ceil(layer.weights[1].size * _LOADING_NS[tile] / threads / _MOST_LOADING_NS)


def _cost(layer: Layer, tile: int, sizes: Mapping[str, Shape], threads: int) -> float:
    """Multiplications of a 3x3 convolution in tiles of this size, each at its price, with what
    reading the weights costs: they are as many as a tile of input has elements, and are read from
    memory, unless they stay in the cache.
    """
    if not _is_for_winograd(layer):
        return 0.0
    weight, (*_, rows, columns) = layer.weights[1], sizes[layer.outputs[0]]
    elements = (tile + 2) ** 2
    read = _READING if weight.nbytes > _CACHE_BYTES else _READING_CACHED
    tiles = ceil(rows / tile) * ceil(columns / tile)
    pairs = int(weight.shape[0] * weight.shape[1])
    parts = 1 + _PART * (_parts(layer, tile, threads) - 1)
    return pairs * elements * (_PRICES[tile] * tiles * parts + read)


def _in_parts(layer: Layer, count: int, sizes: dict[str, Shape]) -> list[Layer]:
    """The convolution as so many with a share of its output channels each, joined."""
    if count == 1:
        return [layer]
    (output,) = layer.outputs
    tag, *arrays = layer.weights
    parts = []
    for number, shares in enumerate(zip(*(np.array_split(a, count) for a in arrays), strict=True)):
        name, channels = f"{output}__part{number}", len(shares[0])
        sizes[name] = (1, channels, *sizes[output][2:])
        parameters = {**layer.parameters, _OUTPUTS: channels, _WEIGHTS: shares[0].size}
        parts.append(replace(layer, outputs=[name], parameters=parameters, weights=[tag, *shares]))
    names = [name for part in parts for name in part.outputs]
    return [*parts, Layer("Concat", names, [output], {0: 0})]
