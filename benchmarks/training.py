"""The training step of a multi-layer perceptron, as SOYBEAN's section 2.2 counts its bytes.

    forward    x[l] = x[l-1] W[l]
    loss       dx[L] = f(x[L])
    backward   dx[l-1] = dx[l] W[l]^T
    gradient   dW[l] = x[l-1]^T dx[l]
    update     W[l] = W[l] - e dW[l]

Inference has only the first row; the other rows are the training terms that a planner leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.matrices import (
    COLUMNS,
    REPLICATED,
    ROWS,
    Counting,
    MatrixFlow,
    elementwise,
    product,
)

FLOAT_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class Perceptron:
    """Fully connected layers of `width` neurons each, trained on `batch` samples at a time."""

    layers: int
    width: int
    batch: int

    def flow(self, counting: Counting = "ghost", *, training: bool = True) -> MatrixFlow:
        """The dataflow graph of one step; of inference alone if not `training`."""
        sizes = self._sizes(training)
        index = {name: position for position, name in enumerate(sizes)}
        last = self.layers
        operations = [
            product(index[f"x{layer - 1}"], index[f"W{layer}"], index[f"x{layer}"])
            for layer in range(1, last + 1)
        ]
        if training:
            operations.append(elementwise((index[f"x{last}"],), index[f"dx{last}"]))
        for layer in range(last, 0, -1) if training else ():
            weight, above, gradient = index[f"W{layer}"], index[f"dx{layer}"], index[f"dW{layer}"]
            if layer > 1:
                operations.append(
                    product(above, weight, index[f"dx{layer - 1}"], y_transposed=True)
                )
            operations.append(product(index[f"x{layer - 1}"], above, gradient, x_transposed=True))
            operations.append(elementwise((weight, gradient), weight))
        return MatrixFlow.of(sizes, operations, counting)

    def _sizes(self, training: bool) -> dict[str, float]:
        """Bytes of every matrix: activations, weights, and their gradients."""
        activation = self.batch * self.width * FLOAT_BYTES
        weight = self.width * self.width * FLOAT_BYTES
        layers = range(1, self.layers + 1)
        sizes = {f"x{layer}": activation for layer in range(self.layers + 1)}
        sizes |= {f"W{layer}": weight for layer in layers}
        if training:
            sizes |= {f"dx{layer}": activation for layer in layers} | {
                f"dW{layer}": weight for layer in layers
            }
        return sizes


# Tilings by kind of matrix [section 4.1]. A gradient of weights is added up split: each device
# updates its share of the weights, which the update then gathers if they are replicated.
DATA_PARALLEL = {"x": ROWS, "dx": ROWS, "W": REPLICATED, "dW": ROWS}
MODEL_PARALLEL = {"x": COLUMNS, "dx": REPLICATED, "W": ROWS, "dW": ROWS}


@dataclass(frozen=True, slots=True)
class FixedCut:
    """Every group divided into `ways` even parts, as a person would choose: a tiling for each
    kind of matrix, and weights that stay where they are.
    """

    ways: int
    kinds: Mapping[str, int]

    def tilings(self, flow: MatrixFlow) -> tuple[int, ...]:
        """The tiling of every matrix of a perceptron's flow."""
        return tuple(self.kinds[_kind(name)] for name in flow.names)


def total_bytes(flow: MatrixFlow, cuts: Sequence[FixedCut]) -> float:
    """What these cuts move, one after the other. Even parts are alike, so a cut counts once for
    each group that it divides [Theorem 1].
    """
    total, groups = 0.0, 1
    for cut in cuts:
        chosen, shares = cut.tilings(flow), (1 / cut.ways,) * cut.ways
        forms = [_form(flow, o, chosen, shares) for o in range(len(flow.flow))]
        total += groups * sum(flow.moved(o, f, chosen, shares) for o, f in enumerate(forms))
        flow, groups = flow.part_in(forms, chosen, shares, 0), groups * cut.ways
    return total


def _form(flow: MatrixFlow, operation: int, chosen: Sequence[int], shares: Sequence[float]) -> int:
    """The cheapest form for which no weights move."""
    product = flow.flow[operation]
    resting = [
        f
        for f, form in enumerate(product.forms)
        if all(
            chosen[matrix] in (need, REPLICATED)
            for matrix, need in zip(product.inputs, form.needs, strict=True)
            if _kind(flow.names[matrix]) == "W"
        )
    ]
    return min(resting, key=lambda f: flow.moved(operation, f, chosen, shares))


def _kind(name: str) -> str:
    return name.rstrip("0123456789")
