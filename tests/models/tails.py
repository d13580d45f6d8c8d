"""Small networks whose last shapes depend on values, in each of the ways of exporters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.models.attention import Net

SIDE = 64


def backbone() -> tuple[Net, str]:
    """Two convolutions with strides; a map of 16 channels."""
    net = Net(1, 3, SIDE, SIDE)
    x = "x"
    for channels in (3, 16):
        x = net.add("Relu", net.conv(x, channels, 16, 3, stride=2))
    return net, x


def candidates(net: Net, x: str) -> tuple[str, str]:
    """Boxes (1, 256, 4) and scores (1, 2, 256)."""
    flat = net.reshape(net.conv(x, 16, 6), 1, 6, -1)
    boxes, scores = net.several("Split", flat, net.ints(4, 2), count=2, axis=1)
    return net.add("Transpose", boxes, perm=[0, 2, 1]), net.add("Sigmoid", scores)


def suppression() -> onnx.ModelProto:
    """Non-maximum suppression, and the boxes that remain; scores that are not part of the tail."""
    net, x = backbone()
    boxes, scores = candidates(net, x)
    settings = [net.constant(np.array(value, np.float32)) for value in (0.5, 0.4)]
    kept = net.add("NonMaxSuppression", boxes, scores, net.ints(200), *settings)
    index = net.add("Squeeze", net.add("Gather", kept, net.ints(2), axis=1), net.ints(1))
    return net.model(net.add("Gather", boxes, index, axis=1), scores, integers=[kept])


def above() -> onnx.ModelProto:
    """The places of likely scores."""
    net, x = backbone()
    _, scores = candidates(net, x)
    likely = net.add("Greater", scores, net.constant(np.array(0.5, np.float32)))
    return net.model(integers=[net.add("NonZero", likely)])


def chosen() -> onnx.ModelProto:
    """One of two branches, which read the map from outside."""
    net, x = backbone()
    mean = net.add("ReduceMean", x, keepdims=0, axes=[0, 1, 2, 3])
    yes = net.add("Greater", mean, net.constant(np.array(0.1, np.float32)))
    branches = []
    for op in ("Abs", "Neg"):
        output = [helper.make_tensor_value_info(op, TensorProto.FLOAT, None)]
        branches.append(helper.make_graph([helper.make_node(op, [x], [op])], op, [], output))
    return net.model(net.add("If", yes, then_branch=branches[0], else_branch=branches[1]))


def repeated() -> onnx.ModelProto:
    """A loop that adds the map and a constant, both from outside."""
    net, x = backbone()
    small = net.floats(1, 16, 1, 1)
    kinds = [("n", TensorProto.INT64, []), ("go", TensorProto.BOOL, [])]
    given = [*kinds, ("sum", TensorProto.FLOAT, None)]
    made = [("on", TensorProto.BOOL), ("more", TensorProto.FLOAT)]
    body = helper.make_graph(
        [
            helper.make_node("Add", ["sum", x], ["half"]),
            helper.make_node("Add", ["half", small], ["more"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [helper.make_tensor_value_info(*each) for each in given],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in made],
    )
    times = net.constant(np.array(3, np.int64))
    return net.model(net.add("Loop", times, "", net.floats(1), body=body))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "suppression": suppression,
    "above": above,
    "chosen": chosen,
    "repeated": repeated,
}
