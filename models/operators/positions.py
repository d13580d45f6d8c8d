"""The positions of a Resize's output elements in its input, computed in float32 as onnxruntime
does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from models.graph.graph import Node

Singles = NDArray[np.float32]
# Units in the last place by which a computed position may be off.
_OFF_ULP = 8


def positions(coordinates: str, size: int, out: int, scale: np.float32) -> Singles:
    """Where output elements lie in the input [ONNX, Resize: coordinate_transformation_mode]."""
    o = np.arange(out, dtype=np.float32)
    half = np.float32(0.5)
    match coordinates:
        case "asymmetric":
            return o / scale
        case "align_corners":
            if out == 1:
                return np.zeros_like(o)
            return o * np.float32(size - 1) / np.float32(out - 1)
        case "pytorch_half_pixel" if out == 1:
            return np.zeros_like(o)
        case "half_pixel_symmetric":
            adjustment = np.float32(out) / (scale * np.float32(size))
            offset = np.float32(size) / 2 * (1 - adjustment)
            return (offset + (o + half) / scale - half).astype(np.float32)
        case _:
            return (o + half) / scale - half


def nearest(node: Node, opset: int, where: Singles, scale: float) -> Singles:
    """The element for each position, before clipping to the input."""
    if node.op == "Upsample" or opset < 11:
        rounded = np.ceil(where) if scale < 1 else np.trunc(where)
    else:
        match node.attributes.get("nearest_mode", b"round_prefer_floor").decode():
            case "floor":
                rounded = np.floor(where)
            case "ceil":
                rounded = np.ceil(where)
            case "round_prefer_ceil":
                rounded = np.floor(where + np.float32(0.5))
            case _:
                rounded = np.ceil(where - np.float32(0.5))
    return rounded


def nearly_halfway(where: Singles) -> bool:
    """Whether a position lies halfway between two elements up to rounding errors, so that runtimes
    may round it either way.
    """
    beside = np.abs(where - np.floor(where) - np.float32(0.5))
    return bool(((beside > 0) & (beside < _OFF_ULP * np.spacing(np.maximum(where, 1)))).any())
