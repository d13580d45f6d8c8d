"""What onnxruntime's optimisers write is divided like the network that it was made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.exports.__main__ import split_share
from models.catalogue import catalogue
from models.check.check import CheckReport, check, fused
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, random_inputs
from protos.errors import BadRequest
from tests.models.attention import NETWORKS, Net
from tests.models.faults import left_out

RUNTIME = "com.microsoft"
SHAPE = (1, 12, 8)
NORM = [np.linspace(0.5, 1.0, 8, dtype=np.float32), np.linspace(-1.0, 1.0, 8, dtype=np.float32)]


def optimised(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The file that onnxruntime writes, with the fusions for any processor."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimised.onnx")


@pytest.mark.parametrize("name", ["class token", "tokens", "windows", "gates", "vectors as gates"])
def test_an_optimised_network_is_split_as_before(name: str, tmp_path: Path) -> None:
    model = NETWORKS[name]()
    found = optimised(model, tmp_path)
    assert any(node.domain == RUNTIME for node in found.graph.node)
    network = divide(load_graph(found))
    assert not any(node.op.startswith(f"{RUNTIME}.Fused") for node in network.graph.nodes)
    assert split_share(network) >= 0.99 * split_share(divide(load_graph(model)))
    assert check(found, network, (3, 1), fused(network)).ok


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3", "convnext-tiny", "yolov8n"])
def test_an_optimised_network_of_the_catalogue_is_split(name: str, tmp_path: Path) -> None:
    model = catalogue.load(name).proto
    found = optimised(model, tmp_path)
    assert any(node.domain == RUNTIME for node in found.graph.node)
    network = divide(load_graph(found))
    assert split_share(network) >= 0.99 * split_share(divide(load_graph(model)))
    assert check(found, network, (2, 2), fused(network)).ok


def between(
    op: str,
    constants: list[np.ndarray | str],
    outputs: list[str] | None = None,
    *,
    opset: int = 17,
    domain: str = RUNTIME,
    **attributes: object,
) -> onnx.ModelProto:
    """The operator, of a map's tokens (1, 12, 8) and what else it reads (x: the same)."""
    made = outputs or ["found"]
    names = [each if isinstance(each, str) else f"c{k}" for k, each in enumerate(constants)]
    nodes = [
        helper.make_node("Neg", ["input"], ["map"], name="before"),
        helper.make_node("Squeeze", ["map", "last"], ["flat"], name="flat"),
        helper.make_node("Transpose", ["flat"], ["x"], name="tokens", perm=[0, 2, 1]),
        helper.make_node(op, ["x", *names], made, "fused", domain=domain, **attributes),
    ]
    read = [name for name in made if name]
    nodes.append(helper.make_node("Sum", read, ["y"], name="after"))
    graph = helper.make_graph(
        nodes,
        "fused",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, (1, 8, 12, 1))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(each, name)
            for name, each in zip(names, constants, strict=True)
            if isinstance(each, np.ndarray)
        ]
        + [numpy_helper.from_array(np.array([3]), "last")],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(RUNTIME, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).uniform(-0.5, 0.5, shape).astype(np.float32)


def operators(model: onnx.ModelProto) -> set[str]:
    return {node.op for node in load_graph(model).nodes}


def checked(model: onnx.ModelProto) -> CheckReport:
    network = divide(load_graph(model))
    return check(model, network, (3, 1), fused(network))


@pytest.mark.parametrize("opset", [14, 17, 23])
@pytest.mark.parametrize(
    ("op", "constants", "outputs"),
    [
        ("SkipLayerNormalization", ["x", *NORM], None),
        ("SkipLayerNormalization", [NORM[0].repeat(12).reshape(12, 8), *NORM], None),
        ("SkipLayerNormalization", ["x", *NORM, NORM[1]], ["found", "", "", "total"]),
        ("SkipSimplifiedLayerNormalization", ["x", NORM[0]], None),
        ("SkipSimplifiedLayerNormalization", ["x", *NORM], ["found", "", "", "total"]),
    ],
)
def test_a_residual_and_its_norm_in_every_form(
    op: str, constants: list[np.ndarray | str], outputs: list[str] | None, opset: int
) -> None:
    model = between(op, constants, outputs, opset=opset)
    assert operators(model).isdisjoint({f"{RUNTIME}.{op}"})
    assert checked(model).ok
    assert all(unit.splits for unit in divide(load_graph(model)).units)


def test_a_norm_without_a_mean_may_be_alone() -> None:
    model = between("SimplifiedLayerNormalization", [NORM[0]], domain="", axis=-1)
    assert checked(model).ok
    assert all(unit.splits for unit in divide(load_graph(model)).units)


@pytest.mark.parametrize("op", ["FastGelu", "BiasGelu", "SkipLayerNormalization"])
def test_a_list_of_maps_is_joined_behind_it(op: str) -> None:
    """ONNX infers no shape of its parts."""
    net = Net(1, 3, 8, 8)
    parts = [net.reshape(net.conv("x", 3, 4), 1, 4, 64) for _ in range(2)]
    tokens = net.add("Transpose", net.add("Concat", *parts, axis=2), perm=[0, 2, 1])
    more = {
        "FastGelu": [],
        "BiasGelu": [net.floats(4)],
        "SkipLayerNormalization": [net.floats(1, 128, 4), net.floats(4), net.floats(4)],
    }
    made = net.add(op, tokens, *more[op], domain=RUNTIME)
    model = net.model(net.add("Sigmoid", made), opset=14)
    graph = load_graph(model)
    assert len(graph.joined) == 1
    assert checked(model).ok


WIDE = weights(8, 24)
MASK = np.array([[1] * 12], np.int32)
# Whatever of these changes the answer in a way that is not written out.
KEPT = [
    ("SkipLayerNormalization", ["x", *NORM], {"outputs": ["found", "mean"]}),
    ("FusedMatMul", [weights(12, 8, 5)], {"transBatchA": 1}),
    ("MultiHeadAttention", ["x", "x"], {"num_heads": 2, "unidirectional": 1}),
    ("MultiHeadAttention", ["x", "x", "", MASK], {"num_heads": 2}),
    ("Attention", [WIDE, weights(24), MASK], {"num_heads": 2}),
    ("Attention", [WIDE, weights(24)], {"num_heads": 2, "unidirectional": 1}),
]


@pytest.mark.parametrize(("op", "constants", "more"), KEPT)
def test_fused_operators_that_are_not_written_out_run_whole(
    op: str, constants: list[np.ndarray | str], more: dict[str, object]
) -> None:
    model = between(op, constants, **more)  # type: ignore[arg-type]
    assert f"{RUNTIME}.{op}" in operators(model)
    assert checked(model).ok


@pytest.mark.parametrize(
    ("op", "constants", "attributes"),
    [
        ("FusedMatMul", [weights(8, 5)], {"alpha": "half"}),
        ("FusedMatMul", [weights(8, 5)], {"transA": 1}),
        ("FusedGemm", [weights(8, 5)], {"activation": "Relu"}),  # of three dimensions
        ("FusedConv", [weights(3, 12, 2)], {"activation": "Swoosh"}),
        ("FusedConv", [weights(3, 12, 2)], {"activation": "Clip", "activation_params": [1.0]}),
        ("FusedConv", [weights(3, 12, 2)], {"activation": 3}),
        ("BiasGelu", [weights(5)], {}),
        ("SkipLayerNormalization", [weights(5, 8), *NORM], {}),
        ("MultiHeadAttention", ["x", "x"], {"num_heads": 0}),
        ("MultiHeadAttention", ["x", "x"], {}),
        ("Attention", [WIDE, weights(24)], {"num_heads": 2, "qkv_hidden_sizes": [8, 8]}),
        ("Attention", [WIDE, weights(24)], {"num_heads": 2, "qkv_hidden_sizes": [-8, 16, 16]}),
        ("Attention", [WIDE, weights(23)], {"num_heads": 2}),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_a_damaged_one_is_refused(
    op: str, constants: list[np.ndarray | str], attributes: dict[str, object], last: bool
) -> None:
    model = between(op, constants, **attributes)  # type: ignore[arg-type]
    if last:  # so that its shape need not be asked for
        model.graph.node.pop()
        output = helper.make_tensor_value_info("found", TensorProto.FLOAT, SHAPE)
        model.graph.output[0].CopyFrom(output)
    with pytest.raises(BadRequest):
        WholeModel(model).run(random_inputs(load_graph(model)))


SQUARE = weights(8, 8)
# The step that is left out of each.
STEPS = [
    ("FusedConv", [weights(12, 12, 1)], {"activation": "Relu"}, "Relu"),
    ("FusedConv", [weights(12, 12, 1), weights(12), "x"], {"activation": "Tanh"}, "Add"),
    ("FusedMatMul", [SQUARE], {"alpha": 0.5}, "Mul"),
    ("FusedMatMul", [SQUARE], {"transB": 1}, "Transpose"),
    ("TransposeMatMul", [SQUARE], {"transB": 1}, "Transpose"),
    ("BiasGelu", [NORM[1]], {}, "Add"),
    ("BiasGelu", [NORM[1]], {}, "Gelu"),
    ("FastGelu", [NORM[1]], {}, "Add"),
    ("SkipLayerNormalization", ["x", *NORM, NORM[1]], {}, "Add"),
    ("SkipLayerNormalization", ["x", *NORM], {}, "LayerNormalization"),
    ("SkipSimplifiedLayerNormalization", [SQUARE[:1].repeat(12, 0), NORM[0]], {}, "Add"),
    ("MultiHeadAttention", ["x", "x", weights(24)], {"num_heads": 2}, "Add"),
    ("MultiHeadAttention", ["x", "x"], {"num_heads": 2}, "Softmax"),
    ("MultiHeadAttention", ["x", "x"], {"num_heads": 2, "scale": 0.3}, "Mul"),
    ("Attention", [weights(8, 24), weights(24)], {"num_heads": 2}, "Add"),
    ("Attention", [weights(8, 24), weights(24)], {"num_heads": 2}, "Softmax"),
]


@pytest.mark.parametrize(("op", "constants", "attributes", "step"), STEPS)
def test_a_step_that_is_left_out_is_noticed(
    op: str,
    constants: list[np.ndarray | str],
    attributes: dict[str, object],
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = between(op, constants, **attributes)  # type: ignore[arg-type]
    assert checked(model).ok
    left_out(f"{RUNTIME}.{op}", step, monkeypatch)
    assert not checked(model).ok


def test_a_step_that_is_left_out_of_a_fused_layer_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = Net(1, 3, 4, 4)
    flat = net.add("Flatten", net.conv("x", 3, 4), axis=2)
    matrix = net.reshape(flat, 4, 16)
    product = net.add("FusedGemm", matrix, net.floats(16, 3), activation="Sigmoid", domain=RUNTIME)
    model = net.model(net.add("Neg", product))
    assert checked(model).ok
    left_out(f"{RUNTIME}.FusedGemm", "Sigmoid", monkeypatch)
    assert not checked(model).ok


def sized_layers(count: int, *, told: bool) -> onnx.ModelProto:
    """Layers of tokens whose heads' sizes are computed from the shape of a residual norm, of which
    ONNX infers none; `told`: by the norm's parts, whose shapes it does.
    """
    net, width, heads = Net(1, 3, 64, 64), 32, 4
    patches = net.add("Conv", "x", net.floats(width, 3, 8, 8), strides=[8, 8])
    last = first = net.tokens(patches, width, 64)
    for _ in range(count):
        scale, bias = net.floats(width), net.floats(width)
        if told:
            first = net.add("LayerNormalization", net.add("Add", last, first), scale, bias)
        else:
            first = net.add(
                "SkipLayerNormalization", last, first, scale, bias, epsilon=1e-5, domain=RUNTIME
            )
        product = net.add("MatMul", first, net.floats(width, width))
        shape = net.add("Shape", product)
        sizes = [
            net.add(
                "Unsqueeze",
                net.add("Gather", shape, net.constant(np.array(k, np.int64)), axis=0),
                net.ints(0),
            )
            for k in range(2)
        ]
        apart = net.add("Concat", *sizes, net.ints(heads, width // heads), axis=0)
        turned = net.add("Transpose", net.add("Reshape", product, apart), perm=[0, 2, 1, 3])
        back = net.add("Transpose", net.add("Relu", turned), perm=[0, 2, 1, 3])
        last = net.add("Reshape", back, net.add("Concat", *sizes, net.ints(width), axis=0))
    return net.model(net.add("Relu", last))


@pytest.mark.parametrize("count", [1, 3, 40])
def test_sizes_known_from_shapes_are_asked_for_too(count: int) -> None:
    fused_layers, plain = sized_layers(count, told=False), sized_layers(count, told=True)
    report = checked(fused_layers)
    assert report.ok, report
    assert not report.refusals
    assert split_share(divide(load_graph(fused_layers))) == split_share(divide(load_graph(plain)))


def test_a_layout_for_one_processor_names_its_cure(tmp_path: Path) -> None:
    """The level of optimisation that onnxruntime takes by itself."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "blocked.onnx")
    options.log_severity_level = 4
    net = Net(1, 16, 16, 16)
    model = net.model(net.add("Relu", net.conv("x", 16, 16, 3)))
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    blocked = onnx.load(tmp_path / "blocked.onnx")
    if not any(node.domain == f"{RUNTIME}.nchwc" for node in blocked.graph.node):
        pytest.skip("this processor has no such layout")
    report = checked(blocked)
    assert report.ok, report
    assert report.refusals
    assert all("save the file with ORT_ENABLE_EXTENDED" in each.reason for each in report.refusals)
