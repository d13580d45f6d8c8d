"""The nine networks of the `onnx` package's backend tests, with seeded weights.

The package ships them without weights: each is a ConstantOfShape, the same number everywhere. A
network whose weights are all alike hides what goes wrong between channels, so here every one is
drawn at random, of a size that keeps activations near 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
PREFIX = "light_"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob(f"{PREFIX}*.onnx")))
# The first whose initialisers need not be inputs too.
IR_VERSION = 4
_NORMALISATION = {1: (1.0, 0.1), 2: (0.0, 0.1), 3: (0.0, 0.1), 4: (1.0, 0.3)}


def light_network(name: str, seed: int = 0) -> ModelProto:
    """The network, its constant weights replaced (variances are positive), without a final
    Softmax: it would hide errors of a thousandth behind a thousand classes.
    """
    model = onnx.load(FOLDER / f"{name}.onnx")
    graph = model.graph
    rng = np.random.default_rng(seed)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    constant = {n.output[0]: n for n in graph.node if n.op_type == "ConstantOfShape"}
    for weight, node in constant.items():
        shape = tuple(int(size) for size in shapes[node.input[0]])
        values = _drawn(rng, shape, *_use(graph.node, weight))
        graph.initializer.append(numpy_helper.from_array(values, weight))
    dead = {node.input[0] for node in constant.values()}
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    if kept[-1].op_type == "Softmax":
        _end_before(model, kept.pop())
    del graph.node[:]
    graph.node.extend(kept)
    initializers = [tensor for tensor in graph.initializer if tensor.name not in dead]
    del graph.initializer[:]
    graph.initializer.extend(initializers)
    given = dead | {tensor.name for tensor in initializers}
    inputs = [value for value in graph.input if value.name not in given]
    del graph.input[:]
    graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, IR_VERSION)
    return model


def _use(nodes: Sequence[NodeProto], weight: str) -> tuple[str, int]:
    """The operator that a weight ends in, and as which of its inputs."""
    for node in nodes:
        if weight in node.input:
            if node.op_type == "Unsqueeze":
                return _use(nodes, node.output[0])
            return node.op_type, list(node.input).index(weight)
    return "", 0


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], op: str, index: int) -> np.ndarray:
    """He-uniform weights, small biases, statistics about mean 0 and variance 1."""
    if op in ("Conv", "Gemm") and index == 1:
        about, spread = 0.0, math.sqrt(6 / math.prod(shape[1:]))
    elif op == "BatchNormalization":
        about, spread = _NORMALISATION[index]
    else:
        about, spread = (1.0, 0.1) if op == "Mul" else (0.0, 0.05)
    values = rng.random(shape, dtype=np.float32)
    return about + np.float32(2 * spread) * (values - np.float32(0.5))


def _end_before(model: ModelProto, softmax: NodeProto) -> None:
    """Makes the logits the output."""
    output = model.graph.output[0]
    assert list(softmax.output) == [output.name]
    output.name = softmax.input[0]
