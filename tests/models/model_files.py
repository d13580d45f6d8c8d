"""A tiny model as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx import ModelProto

from models.zoo.builder import Network, square

SIDECAR: dict[str, Any] = {
    "name": "tiny",
    "task": "tensor",
    "description": "one convolution",
    "licence": "Apache-2.0",
    "source": "tests",
    "trained": True,
    "labels": [],
    "input": {
        "name": "image",
        "size": [8, 8],
        "resize": "stretch",
        "color": "RGB",
        "scale": 1.0,
        "mean": [0.0, 0.0, 0.0],
        "std": [1.0, 1.0, 1.0],
        "pad_value": 0,
    },
}


def tiny(opset: int = 17) -> ModelProto:
    net = Network("tiny", seed=3)
    x = net.input("image", (1, 3, 8, 8)).conv("conv1", 4, square(3)).relu()
    model = net.model(x)
    model.opset_import[0].version = opset
    return model


def saved(folder: Path, model: ModelProto) -> Path:
    path = folder / "tiny.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def shapes_of(proto: ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of inputs, outputs and what was inferred between them."""
    graph = proto.graph
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
