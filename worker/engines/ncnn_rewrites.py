"""Layers of ncnn written differently, for the same results in less time."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from models.tensors.arrays import Shape
from worker.engines.ncnn_layer import CONVOLUTIONS, Layer

# ncnn's numbers of operations on two tensors.
_ADD, _MUL, _DIV = 0, 2, 3
# Beyond this, weights may leave the range of numbers.
_MOST_FACTOR = 1e6
# A convolution of 1x1, by ncnn's numbers of parameters; 9 is its activation.
_PRODUCT = {1: 1, 11: 1, 3: 1, 13: 1, 4: 0, 14: 0, 15: 0, 16: 0}


def rewritten(
    layers: Sequence[Layer], ends: Collection[str], sizes: dict[str, Shape]
) -> list[Layer]:
    """The layers that compute `ends`; `sizes` has the shapes of all tensors, also of new ones."""
    layers = _with_factors_in_weights(layers, ends)
    layers = _needed(_with_whole_tensors(layers, sizes), ends)
    return _needed(_with_products_before_resizing(layers, ends, sizes), ends)


def _needed(layers: Sequence[Layer], ends: Collection[str]) -> list[Layer]:
    """The inputs, and what is read, directly or not."""
    needed, kept = {*ends}, list[Layer]()
    for layer in reversed(layers):
        if layer.kind == "Input" or not needed.isdisjoint(layer.outputs):
            needed.update(layer.inputs)
            kept.append(layer)
    return kept[::-1]


def _with_factors_in_weights(layers: Sequence[Layer], ends: Collection[str]) -> list[Layer]:
    """A number by which is multiplied what only convolutions read is in their weights: pixels need
    no layer of their own.
    """
    others = {name for layer in layers if layer.kind not in CONVOLUTIONS for name in layer.inputs}
    factors: dict[str, tuple[str, float]] = {}
    result = []
    for layer in layers:
        (*names, output), given = (*layer.inputs, layer.outputs[0]), layer.parameters
        if layer.kind == "BinaryOp" and given.get(1) and given[0] in (_MUL, _DIV) and given[2]:
            factor = given[2] if given[0] == _MUL else 1 / given[2]
            if output not in {*others, *ends} and 1 / _MOST_FACTOR < abs(factor) < _MOST_FACTOR:
                factors[output] = (names[0], factor)
        if layer.kind in CONVOLUTIONS and names[0] in factors:
            source, factor = factors[names[0]]
            tag, weight, *bias = layer.weights
            scaled = replace(layer, inputs=[source])
            scaled.weights = [tag, weight * np.float32(factor), *bias]
            result.append(scaled)
        else:
            result.append(layer)
    return result


def _with_whole_tensors(layers: Sequence[Layer], sizes: Mapping[str, Shape]) -> list[Layer]:
    """Channels of a tensor that are joined in their order again are taken together."""
    starts = {
        layer.outputs[0]: (layer.inputs[0], layer.first_channel)
        for layer in layers
        if layer.first_channel is not None
    }
    return [
        replace(layer, inputs=_joined(layer.inputs, starts, sizes))
        if layer.joins_channels
        else layer
        for layer in layers
    ]


def _joined(
    parts: Sequence[str], starts: Mapping[str, tuple[str, int]], sizes: Mapping[str, Shape]
) -> list[str]:
    names: list[str] = []
    place = 0
    while place < len(parts):
        source, _ = starts.get(parts[place], ("", 0))
        reached, stop = 0, place
        while stop < len(parts) and starts.get(parts[stop]) == (source, reached):
            reached += sizes[parts[stop]][1]
            stop += 1
        if source and reached == sizes[source][1]:
            names.append(source)
            place = stop
        else:
            names.append(parts[place])
            place += 1
    return names if len(names) > 1 else [*parts]


def _with_products_before_resizing(
    layers: Sequence[Layer], ends: Collection[str], sizes: dict[str, Shape]
) -> list[Layer]:
    """A convolution of 1x1 of joined maps, one of which was made larger by repeating its elements,
    computes that one's share before: of fewer elements, and no more channels are repeated.
    """
    makers = {layer.outputs[0]: layer for layer in layers}
    readers = Counter(name for layer in layers for name in layer.inputs) + Counter(ends)
    result: list[Layer] = []
    for layer in layers:
        join = makers[layer.inputs[0]] if layer.inputs else layer
        is_product = layer.kind == "Convolution" and _PRODUCT.items() <= layer.parameters.items()
        resized = [makers[name] for name in join.inputs if makers[name].kind == "Interp"]
        names = [*join.outputs, *(node.outputs[0] for node in resized)]
        if (
            (is_product and 9 not in layer.parameters and join.joins_channels)
            and (len(resized) == 1 < len(join.inputs))
            and all(readers[name] == 1 for name in names)
            and sizes[layer.outputs[0]][1] <= sizes[names[1]][1]
        ):
            result += _apart(layer, join, resized[0], sizes)
        else:
            result.append(layer)
    return result


def _apart(layer: Layer, join: Layer, resized: Layer, sizes: dict[str, Shape]) -> list[Layer]:
    """The convolution's layers, one of which computes what was resized before that."""
    (output,), (large,) = layer.outputs, resized.outputs
    tag, weight, *bias = layer.weights
    ends = np.cumsum([sizes[name][1] for name in join.inputs])[:-1]
    shares = dict(zip(join.inputs, np.split(weight, ends, axis=1), strict=True))
    share = shares.pop(large)
    rest = np.concatenate([*shares.values()], axis=1)
    before, after, joined, other = (f"{output}__{name}" for name in ("s", "l", "j", "o"))
    count = sizes[output][1]
    sizes[before] = (1, count, *sizes[resized.inputs[0]][2:])
    sizes[after] = sizes[other] = sizes[output]
    sizes[joined] = (1, rest.shape[1], *sizes[output][2:])
    bare = layer.parameters | {5: 0, 6: share.size}
    full = layer.parameters | {6: rest.size}
    names = [*shares]
    layers = [
        Layer("Convolution", [*resized.inputs], [before], bare, [tag, share]),
        replace(resized, inputs=[before], outputs=[after]),
    ]
    if len(names) > 1:
        layers.append(Layer("Concat", names, [joined], {0: 0}))
        names = [joined]
    return [
        *layers,
        Layer("Convolution", names, [other], full, [tag, rest, *bias]),
        Layer("BinaryOp", [other, after], [output], {0: _ADD}),
    ]
