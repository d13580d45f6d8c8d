"""How far a split answer may be from the whole model's, relative to the largest magnitude.

Sums in another order round otherwise. A convolution adds some thousand products; statistics over a
map add as many values as it has pixels, and divide by their spread. Half precision has 11 bits:
onnxruntime computes in float32 and rounds where tensors are kept, which are others in a tile.
"""

from __future__ import annotations

from onnx import TensorProto

from models.graph import Graph

PLAIN = 1e-5
STATISTICS = 1e-4
HALF = 4 * 2.0**-10

# These divide by statistics over rows and columns.
_NORMALISING = frozenset(
    {"InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"}
)


def tolerance(graph: Graph) -> float:
    """The largest relative error with which an answer counts as the same."""
    if any(info.data_type == TensorProto.FLOAT16 for info in graph.tensors.values()):
        return HALF
    return STATISTICS if graph.written & _NORMALISING else PLAIN
