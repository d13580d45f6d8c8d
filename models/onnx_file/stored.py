"""A stored network: an ONNX model whose large weights are read later, into memory chosen then."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto

from models.tensors.arrays import Arrays

Allocate = Callable[[np.dtype[Any], Sequence[int]], np.ndarray]
"""Allocates an uninitialised, writable array of a type and shape."""


def in_memory(dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray:
    """An array in memory."""
    return np.empty(tuple(shape), dtype)


@dataclass(frozen=True, slots=True, eq=False)
class StoredModel:
    """`proto` declares all initialisers with types and shapes; `read` returns the missing values by
    name, in arrays that a `Allocate` allocates; these take `sizes` bytes.

    `read` raises BadRequest if the weights can no longer be read.
    """

    proto: ModelProto = field(repr=False)
    read: Callable[[Allocate], dict[str, np.ndarray]] = field(repr=False)
    sizes: tuple[int, ...] = field(repr=False)

    def complete(self) -> ModelProto:
        """A copy of the model with all of its weights."""
        return filled(self.proto, self.read(in_memory))


def filled(model: ModelProto, weights: Arrays) -> ModelProto:
    """A copy of the model, with the bytes of these weights."""
    whole = ModelProto()
    whole.CopyFrom(model)
    for tensor in whole.graph.initializer:
        if tensor.name in weights:
            tensor.raw_data = weights[tensor.name].tobytes()
    return whole
