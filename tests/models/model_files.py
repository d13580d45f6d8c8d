"""A tiny model as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from models.onnx_file.builder import NetworkBuilder, square

Dims = tuple[int | str | None, ...]

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
    net = NetworkBuilder("tiny", seed=3)
    x = net.input("image", (1, 3, 8, 8)).conv("conv1", 4, square(3)).relu()
    model = net.model(x)
    model.opset_import[0].version = opset
    return model


def opened(*inputs: Dims) -> ModelProto:
    """A convolution of the sum of its inputs, (N, C, H, W) with such dimensions."""
    model = tiny()
    graph = model.graph
    del graph.input[:]
    names = [f"in{index}" for index in range(len(inputs))]
    for name, dims in zip(names, inputs, strict=True):
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
    graph.node.insert(0, helper.make_node("Sum", names, ["image"], name="sum"))
    graph.output[0].type.tensor_type.ClearField("shape")
    return model


def halved(model: ModelProto) -> ModelProto:
    """The model in half precision."""
    graph = model.graph
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for weight in graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            half = np.frombuffer(weight.raw_data, np.float32).astype(np.float16)
            weight.data_type, weight.raw_data = TensorProto.FLOAT16, half.tobytes()
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


def _saved(path: Path, nodes: list[Any], inputs: dict[str, tuple[int, Dims]]) -> Path:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def open_sized(path: Path) -> Path:
    """A network whose height and width are open."""
    nodes = [helper.make_node("Relu", ["images"], ["y"])]
    return _saved(path, nodes, {"images": (TensorProto.FLOAT, (1, 3, "height", "width"))})


def two_inputs(path: Path) -> Path:
    """A picture, and the size that boxes are scaled to, as D-FINE's exports take it."""
    nodes = [
        helper.make_node("Cast", ["sizes"], ["by"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["by"], ["most"], keepdims=0),
        helper.make_node("Mul", ["images", "most"], ["y"]),
    ]
    inputs = {
        "images": (TensorProto.FLOAT, (1, 3, 8, 8)),
        "sizes": (TensorProto.INT64, (1, 2)),
    }
    return _saved(path, nodes, inputs)
