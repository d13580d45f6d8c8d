"""A network as it is stored: an ONNX model whose large weights are read later, once it is known
where they are to be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto

Room = Callable[[np.dtype[Any], Sequence[int]], np.ndarray]
"""Makes a writable array of a type and a shape, its values arbitrary."""


def in_memory(dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray:
    """Room in memory."""
    return np.empty(tuple(shape), dtype)


@dataclass(frozen=True, slots=True, eq=False)
class StoredModel:
    """`proto` names all initialisers with types and shapes; `read` returns the values that it
    lacks, by name, in arrays of a room; these take `sizes` in bytes.

    `read` raises BadRequest where the weights cannot be read any more.
    """

    proto: ModelProto = field(repr=False)
    read: Callable[[Room], dict[str, np.ndarray]] = field(repr=False)
    sizes: tuple[int, ...] = field(repr=False)

    def complete(self) -> ModelProto:
        """The model with all of its weights, a copy."""
        return filled(self.proto, self.read(in_memory))


def filled(model: ModelProto, weights: Mapping[str, np.ndarray]) -> ModelProto:
    """A copy of the model, with the bytes of these weights."""
    whole = ModelProto()
    whole.CopyFrom(model)
    for tensor in whole.graph.initializer:
        if tensor.name in weights:
            tensor.raw_data = weights[tensor.name].tobytes()
    return whole
