"""The builder knows the shapes that ONNX infers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime

from models.onnx_file.builder import NetworkBuilder, square
from models.tensors.windows import Window
from tests.models.model_files import shapes_of


def test_builder_tracks_the_shapes_that_onnx_infers():
    net = NetworkBuilder("shapes", seed=1)
    x = net.input("image", (2, 8, 29, 31))
    uneven = (Window(3, 2, 1, 0, 1), Window(5, 1, 2, 3, 4))
    tensors = [x := x.conv("uneven", 12, uneven, groups=4, bias=False).norm().leaky_relu(0.2)]
    tensors.append(x.max_pool("dilated", (Window(2, 1, 2, 1, 0), Window(3, 3, 1, 1, 1))))
    tensors.append(x.average_pool("average", square(3, 2), count_pads=True))
    tensors.append(
        x.conv("same", 20, square(3, dilation=2)).add("twice", x.conv("b", 20, square(1)))
    )
    tensors.append(net.concat("joined", [x, tensors[-1]]))
    tensors.append(x.max_pool("even", square(2, 2)).global_average_pool("mean").flatten("flat"))
    tensors.append(tensors[-1].gemm("fc", 5))
    model = net.model(*tensors)
    onnx.checker.check_model(model, full_check=True)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = shapes_of(onnx.shape_inference.infer_shapes(model, strict_mode=True))
    assert [inferred[tensor.name] for tensor in tensors] == [tensor.shape for tensor in tensors]
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    outputs = session.run(None, {"image": np.ones((2, 8, 29, 31), np.float32)})
    assert [array.shape for array in outputs] == [tensor.shape for tensor in tensors]
