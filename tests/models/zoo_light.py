"""The untrained networks of the catalogue, without the bytes of their weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import ModelProto, TensorProto, helper

from models.catalogue import catalogue
from tests.models.model_files import shapes_of

BUILT = tuple(name for name in catalogue.names() if not catalogue.entry(name).trained)


@dataclass(frozen=True)
class Light:
    """A network without the bytes of its weights, which are most of its size."""

    proto: ModelProto
    shapes: dict[str, tuple[int, ...]]
    digests: dict[str, str]


@cache
def built(name: str) -> Light:
    loaded = catalogue.load(name)
    assert (loaded.name, loaded.trained) == (name, False)
    assert (loaded.sidecar is None) == (catalogue.entry(name).task == "tensor")
    proto = loaded.proto
    shapes = {weight.name: tuple(weight.dims) for weight in proto.graph.initializer}
    digests = {
        weight.name: hashlib.sha256(weight.raw_data).hexdigest()
        for weight in proto.graph.initializer
        if weight.name == "conv1_1.weight" or weight.name.endswith(".bias")
    }
    steering = [weight for weight in proto.graph.initializer if _steers(weight)]
    for weight in proto.graph.initializer:
        if not _steers(weight):
            info = helper.make_tensor_value_info(weight.name, TensorProto.FLOAT, weight.dims)
            proto.graph.input.append(info)
    proto.graph.ClearField("initializer")
    proto.graph.initializer.extend(steering)
    light = onnx.shape_inference.infer_shapes(
        proto, check_type=True, strict_mode=True, data_prop=True
    )
    return Light(light, shapes | shapes_of(light), digests)


def _steers(weight: TensorProto) -> bool:
    """Whether it is a size, a factor, a place or a scalar, nothing that training fits."""
    return (
        weight.data_type != TensorProto.FLOAT
        or len(weight.dims) == 0
        or weight.name.endswith((".scales", "anchors", "strides"))
    )
