"""ncnn: what is translated is computed as by onnxruntime, at equal sizes where axes are easily
confused; the rest is refused by name.
"""

import math
import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from coordinator.costs.rates import RateCosts
from imbrex.demo.emulation.whole_maps import works_of
from models.cut.program import Program
from models.tensors.precision import write_precision
from protos.failures import BadInput
from tests.worker.support import conv_program, picture, whole
from worker.engines.base import Place
from worker.engines.registry import factory_of
from worker.programs.store import BlobStore

Ncnn = pytest.importorskip("worker.engines.ncnn", reason="needs the extra ncnn").Ncnn
# What hands weights over.
READERS = pytest.importorskip("ncnn").DataReader.__subclasses__()
(Weights,) = (each for each in READERS if each.__module__ == Ncnn.__module__)

OPSET = 17
CUBE = (1, 8, 8, 8)
FLOAT = TensorProto.FLOAT


def engine(folder, threads=1):
    return factory_of("ncnn")(Place(folder / "programs", BlobStore(folder, 1 << 30), threads))


def node(op, inputs, outputs="y", **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def integers(*numbers):
    return np.array(numbers, np.int64)


def model(nodes, inputs, outputs, constants, opset=OPSET, kind=FLOAT, made=FLOAT):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, made, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def computed(folder, nodes, feeds, outputs=("y",), opset=OPSET, threads=1, made=FLOAT, **constants):
    """The results of ncnn and of onnxruntime."""
    kind = helper.np_dtype_to_tensor_dtype(next(iter(feeds.values())).dtype)
    shapes = {name: array.shape for name, array in feeds.items()}
    file = model(nodes, shapes, outputs, constants, opset, kind, made)
    expected = dict(zip(outputs, ort.InferenceSession(file).run(list(outputs), feeds), strict=True))
    built, program = engine(folder, threads), Program(file, ())
    built.prepare(program)
    ready = built.load(program.sha256).bound(feeds, {n: a.shape for n, a in expected.items()})
    before = {name: array.copy() for name, array in feeds.items()}
    results = ready.compute()
    again = ready.compute()
    for name, array in results.items():
        assert (array == again[name]).all()
        assert array.flags.c_contiguous
        assert not any(np.may_share_memory(array, feed) for feed in feeds.values())
    for name, array in before.items():
        assert (array == feeds[name]).all(), "an input was written to"
    return results, expected


def assert_same(results, expected):
    assert results.keys() == expected.keys()
    for name, array in expected.items():
        assert results[name].shape == array.shape
        assert np.abs(results[name] - array).max() <= 3e-6 * np.abs(array).max()


WINDOW = {"kernel_shape": [3, 3]}
HALVES = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel"}
# By name: the nodes, and their constants.
PROGRAMS = {
    "average pool with pads": (
        [node("AveragePool", "x", pads=[1, 0, 0, 1], strides=[2, 1], **WINDOW)],
        {},
    ),
    "average pool with pads that count": (
        [node("AveragePool", "x", pads=[1, 0, 0, 1], count_include_pad=1, **WINDOW)],
        {},
    ),
    "batch normalization alone": (
        [node("BatchNormalization", "x s b m v")],
        {"s": values(8), "b": values(8, seed=1), "m": values(8, seed=2), "v": values(8) ** 2},
    ),
    "clip": ([node("Clip", "x l")], {"l": np.float32(0.25)}),
    "clip after a convolution": (
        [node("Conv", "x w", "c", **WINDOW), node("Clip", "c l h")],
        {"w": values(8, 8, 3, 3), "l": np.float32(0), "h": np.float32(6)},
    ),
    "concat of columns": ([node("Concat", "x x", axis=3)], {}),
    "concat of channels": (
        [node("Relu", "x", "r"), node("Concat", "r x r", axis=1)],
        {},
    ),
    "convolution by depth": (
        [node("Conv", "x w b", group=8, pads=[1, 0, 0, 1], strides=[1, 2], **WINDOW)],
        {"w": values(8, 1, 3, 3), "b": values(8)},
    ),
    "convolution in groups": (
        [node("Conv", "x w", group=2, dilations=[2, 1], **WINDOW)],
        {"w": values(8, 4, 3, 3)},
    ),
    "convolution with batch normalization, twice read": (
        [
            node("Conv", "x w", "c", pads=[0, 1, 2, 0], **WINDOW),
            node("BatchNormalization", "c s b m v", "n"),
            node("Relu", "n", "r"),
            node("Add", "r n"),
        ],
        {
            **{"w": values(8, 8, 3, 3), "s": values(8), "b": values(8, seed=1)},
            **{"m": values(8, seed=2), "v": values(8) ** 2},
        },
    ),
    "convolution, transposed": (
        [node("ConvTranspose", "x w b", strides=[2, 2], kernel_shape=[2, 2])],
        {"w": values(8, 5, 2, 2), "b": values(5)},
    ),
    "convolution, transposed, with pads on some sides": (
        [
            node(
                "ConvTranspose",
                "x w",
                **{"strides": [2, 3], "pads": [1, 0, 2, 1], "output_padding": [1, 2]},
                **WINDOW,
            )
        ],
        {"w": values(8, 8, 3, 3)},
    ),
    "convolution, transposed, with dilations, of what is read twice": (
        [
            node("Relu", "x", "r"),
            node("ConvTranspose", "r w", "c", dilations=[2, 1], pads=[2, 1, 2, 1], **WINDOW),
            node("Add", "c r"),
        ],
        {"w": values(8, 8, 3, 3)},
    ),
    "depth to space": ([node("DepthToSpace", "x", blocksize=2)], {}),
    "depth to space by rows": ([node("DepthToSpace", "x", blocksize=2, mode="CRD")], {}),
    "divided constant": ([node("Div", "c x")], {"c": np.float32(3)}),
    "flatten and product": (
        [node("Flatten", "x", "f"), node("Gemm", "f w b", transB=1)],
        {"w": values(5, 512), "b": values(5)},
    ),
    "global average": ([node("GlobalAveragePool", "x")], {}),
    "global average without its axes": ([node("ReduceMean", "x", axes=[2, 3], keepdims=0)], {}),
    "hard sigmoid": ([node("HardSigmoid", "x", alpha=0.3)], {}),
    "hard swish": ([node("HardSwish", "x")], {}),
    "hard swish after a convolution": (
        [node("Conv", "x w", "c", **WINDOW), node("HardSwish", "c")],
        {"w": values(8, 8, 3, 3)},
    ),
    "leaky relu": ([node("LeakyRelu", "x", alpha=0.2)], {}),
    "local response": ([node("LRN", "x", size=5, alpha=0.2, beta=0.6, bias=2.0)], {}),
    "max pool with pads": ([node("MaxPool", "x", pads=[0, 1, 1, 0], **WINDOW)], {}),
    "max pool with strides that leave rows out": (
        [node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2])],
        {},
    ),
    "max pool, rounded up": (
        [node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)],
        {},
    ),
    "mean of columns": ([node("ReduceMean", "x", axes=[3])], {}),
    "mean of rows": ([node("ReduceMean", "x", axes=[2])], {}),
    "pad of edges": ([node("Pad", "x p", mode="edge")], {"p": integers(0, 0, 1, 2, 0, 0, 3, 0)}),
    "pad of zeros": ([node("Pad", "x p")], {"p": integers(0, 0, 1, 2, 0, 0, 3, 0)}),
    "prelu": ([node("PRelu", "x s")], {"s": values(8, 1, 1)}),
    "product of rows": (
        [node("Reshape", "x s", "f"), node("MatMul", "f w")],
        {"s": integers(1, 64, 8), "w": values(8, 8)},
    ),
    "product of one row": (
        [node("Reshape", "x s", "f"), node("MatMul", "f w")],
        {"s": integers(1, 1, 512), "w": values(512, 8)},
    ),
    "product of two tensors": ([node("MatMul", "x x")], {}),
    "resize": (
        [node("Resize", "x r s", **HALVES)],
        {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 4], np.float32)},
    ),
    "sigmoid of an output": (
        [node("Conv", "x w", "c", **WINDOW), node("Sigmoid", "c", "s"), node("Mul", "s c")],
        {"w": values(8, 8, 3, 3)},
    ),
    "slice": (
        [node("Slice", "x s e a")],
        {"s": integers(1, 2, 0), "e": integers(8, -1, 5), "a": integers(1, 2, 3)},
    ),
    "softmax of channels": ([node("Softmax", "x", axis=1)], {}),
    "softmax of columns": ([node("Softmax", "x", axis=-1)], {}),
    "softmax of rows": ([node("Softmax", "x", axis=2)], {}),
    "space to depth": ([node("SpaceToDepth", "x", blocksize=2)], {}),
    "split": (
        [node("Split", "x", "a b", axis=2), node("Sub", "a b")],
        {},
    ),
    "subtracted constant": ([node("Sub", "x c", "d"), node("Sub", "c d")], {"c": np.float32(3)}),
    **{op.lower(): ([node(op, "x")], {}) for op in ("Abs", "Erf", "Exp", "Mish", "Neg", "Tanh")},
    "softplus": ([node("Softplus", "x")], {}),
    "square": ([node("Pow", "x p")], {"p": np.float32(2)}),
    "root": ([node("Abs", "x", "a"), node("Sqrt", "a")], {}),
}


# Those of which the sizes are given.
SIZED = ("flatten and product", "product", "space to depth", "split")
ODD = (1, 8, 7, 9)


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, CUBE) for name in sorted(PROGRAMS)]
    + [(name, ODD) for name in sorted(PROGRAMS) if not name.startswith(SIZED)],
)
def test_every_layer_is_computed_as_by_onnxruntime(tmp_path, monkeypatch, name, shape, packs):
    nodes, constants = PROGRAMS[name]
    net = Ncnn.net
    monkeypatch.setattr(
        Ncnn, "net", lambda own, graph, options: net(own, graph, replace(options, packs=packs))
    )
    opset = {"mish": 18}.get(name, 13 if name.startswith(("split", "mean", "global")) else OPSET)
    assert_same(*computed(tmp_path, nodes, {"x": values(*shape)}, opset=opset, **constants))


def test_inputs_of_odd_sizes_are_joined_in_any_order(tmp_path):
    feeds = {"a": values(*ODD), "b": values(*ODD, seed=1)}
    assert_same(
        *computed(
            tmp_path, [node("Concat", "b a", axis=1), node("Relu", "y", "z")], feeds, ("y", "z")
        )
    )


@pytest.mark.parametrize(
    "shape", [(8, 8, 8), (8, 8, 1), (8, 1, 8), (1, 8, 8), (1, 1, 8), (1, 1, 1)]
)
@pytest.mark.parametrize("op", ["Add", "Div", "Max", "Min", "Mul", "Sub"])
def test_operands_of_any_rank_are_repeated_along_the_right_axes(tmp_path, op, shape):
    x, other = values(*CUBE), values(1, *shape, seed=1)
    for order in ("x o", "o x"):
        nodes = [node(op, order)]
        assert_same(*computed(tmp_path, nodes, {"x": x, "o": other}))
        # As a constant, with fewer axes, too.
        flat = other.reshape(
            other.shape[next(k for k in range(4) if other.shape[k] > 1 or k == 3) :]
        )
        for constant in (other, flat):
            assert_same(*computed(tmp_path, nodes, {"x": x}, o=constant))


@pytest.mark.parametrize("axes", [[1], [1, 2]])
def test_computed_operands_of_fewer_axes_are_repeated_along_the_right_ones(tmp_path, axes):
    nodes = [node("ReduceMean", "x", "m", axes=axes, keepdims=0), node("Mul", "x m")]
    assert_same(*computed(tmp_path, nodes, {"x": values(*CUBE)}, opset=13))


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_axes_are_exchanged_in_every_order(tmp_path, rank):
    x = values(1, *(8,) * (rank - 1))
    for order in list(product(range(1, rank), repeat=rank - 1)):
        if len({*order}) == rank - 1:
            nodes = [node("Transpose", "x", perm=[0, *order])]
            assert_same(*computed(tmp_path, nodes, {"x": x}))


# By name: nodes, constants, and the kinds of layers that this takes; with others read, too.
WRITTEN = {
    "a factor is in the weights of a convolution": (
        [node("Mul", "x f", "z"), node("Conv", "z w", pads=[1, 1, 1, 1], **WINDOW)],
        {"f": np.float32(1 / 255), "w": values(8, 8, 3, 3)},
        {"Convolution"},
    ),
    "a divisor is in the weights of two": (
        [
            node("Div", "x f", "z"),
            node("Conv", "z w", "a", **WINDOW),
            node("Conv", "z v", "b", **WINDOW),
            node("Add", "a b"),
        ],
        {"f": np.float32(64), "w": values(8, 8, 3, 3), "v": values(8, 8, 3, 3, seed=1)},
        {"Convolution", "BinaryOp", "Split"},
    ),
    "a factor that is read elsewhere is a layer": (
        [node("Mul", "x f", "z"), node("Conv", "z w", "a"), node("Add", "a z")],
        {"f": np.float32(2), "w": values(8, 8, 1, 1)},
        {"Convolution", "BinaryOp", "Split"},
    ),
    "halves in their order are the whole": (
        [
            node("Relu", "x", "r"),
            node("Split", "r", "a b", axis=1),
            node("Exp", "b", "c"),
            node("Concat", "a b c", "j", axis=1),
            node("Relu", "j"),
        ],
        {},
        {"Concat", "Crop", "ReLU", "Split", "UnaryOp"},
    ),
    "halves in another order are not": (
        [
            node("Relu", "x", "r"),
            node("Split", "r", "a b", axis=1),
            node("Concat", "b a b", "j", axis=1),
            node("Relu", "j"),
        ],
        {},
        {"Concat", "Crop", "ReLU", "Split"},
    ),
    "a map is multiplied before it is made larger": (
        [
            helper.make_node("Resize", ["x", "", "s"], ["l"], **HALVES),
            node("Exp", "l2", "e"),
            node("Concat", "l2 l e", "j", axis=1),
            node("Conv", "j w b", "y"),
        ],
        {"s": np.array([1, 1, 2, 2], np.float32), "w": values(8, 24, 1, 1), "b": values(8)},
        {"BinaryOp", "Concat", "Convolution", "Interp", "Split", "UnaryOp"},
    ),
    "an input has the shape in which it is read": (
        [node("Flatten", "x", "f"), node("Relu", "f")],
        {},
        {"ReLU"},
    ),
}


@pytest.mark.parametrize("threads", [1, 4])
def test_a_wide_convolution_is_loaded_in_parts_by_few_threads(tmp_path, monkeypatch, threads):
    net, texts = Ncnn.net, []

    def noted(own, graph, options):
        texts.append(graph.text)
        return net(own, graph, options)

    monkeypatch.setattr(Ncnn, "net", noted)
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1], **WINDOW),
        node("Relu", "c", "r"),
        node("Add", "r x"),
    ]
    weights = values(512, 512, 3, 3) / 64
    feeds = {"x": values(1, 512, 8, 8)}
    assert_same(*computed(tmp_path, nodes, feeds, threads=threads, w=weights, b=values(512)))
    parts = [line for line in texts[0].splitlines() if line.startswith("Convolution")]
    assert (len(parts) > 1) is (threads == 1)


def turns_while_loading(folder, monkeypatch):
    """How often another thread runs while a convolution of 1024 channels is loaded."""
    read, ticks, turns, is_ended = Weights.read, [0], [], threading.Event()

    def counted(own, buffer, size):
        before = ticks[0]
        result = read(own, buffer, size)
        turns.append(ticks[0] > before)
        return result

    def tick():
        while not is_ended.is_set():
            ticks[0] += 1
            time.sleep(0)

    monkeypatch.setattr(Weights, "read", counted)
    other = threading.Thread(target=tick)
    other.start()
    try:
        nodes = [node("Conv", "x w", pads=[1, 1, 1, 1], **WINDOW)]
        weights = np.full((1024, 1024, 3, 3), 1 / 9216, np.float32)
        assert_same(*computed(folder, nodes, {"x": values(1, 1024, 8, 8)}, w=weights))
    finally:
        is_ended.set()
        other.join()
    monkeypatch.setattr(Weights, "read", read)
    return sum(turns), len(turns)


def test_other_threads_run_between_the_parts_of_a_wide_convolution(tmp_path, monkeypatch):
    # Where all cores are busy, a lock that is free is not always taken.
    for number in range(10):
        turns, reads = turns_while_loading(tmp_path / f"{number}", monkeypatch)
        if turns >= reads / 2:
            break
    assert turns >= reads / 2, "ncnn holds Python's lock for longer than a part"
    monkeypatch.setattr("worker.engines.ncnn_algorithms._MOST_LOADING_NS", 1e12)
    whole, _ = turns_while_loading(tmp_path / "whole", monkeypatch)
    assert turns > 2 * whole, "parts are off"


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_programs_written_with_fewer_layers_are_computed_as_by_onnxruntime(
    tmp_path, monkeypatch, name, packs
):
    nodes, constants, kinds = WRITTEN[name]
    net, texts = Ncnn.net, []

    def noted(own, graph, options):
        texts.append(graph.text)
        return net(own, graph, replace(options, packs=packs))

    monkeypatch.setattr(Ncnn, "net", noted)
    feeds = {"x": values(*CUBE)}
    if any("l2" in entry.input for entry in nodes):
        feeds["l2"] = values(1, 8, 16, 16, seed=3)
    assert_same(
        *computed(tmp_path, nodes, feeds, opset=13 if "halves" in name else OPSET, **constants)
    )
    assert {line.split()[0] for line in texts[0].splitlines()[2:]} == {"Input", *kinds}


def test_several_outputs_which_are_read_on_come_in_any_order(tmp_path):
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1], **WINDOW),
        node("Relu", "a", "b"),
        node("Sigmoid", "b", "c"),
        node("Slice", "c start stop", "d"),
        node("Concat", "d x a", "e", axis=1),
        node("Identity", "x", "f"),
    ]
    constants = {"w": values(8, 8, 3, 3), "start": integers(0, 2), "stop": integers(1, 7)}
    feeds = {"x": values(*CUBE)}
    for names in ("abcdef", "fedcba", "bd", "ca"):
        assert_same(*computed(tmp_path, nodes, feeds, tuple(names), **constants))


@pytest.mark.parametrize("op", ["Relu", "Sigmoid", "Tanh"])
def test_a_first_layer_that_computes_in_place_leaves_its_input_alone(tmp_path, op):
    x = values(*CUBE)
    x.setflags(write=False)  # as what arrives in a message
    assert_same(*computed(tmp_path, [node(op, "x")], {"x": x}))
    assert_same(*computed(tmp_path, [node(op, "x", "z"), node("Add", "x z")], {"x": x}))
    flat = [node("Flatten", "x", "f"), node(op, "f")]
    assert_same(*computed(tmp_path, flat, {"x": x}))


def test_an_input_that_is_an_output_too_is_copied(tmp_path):
    nodes = [node("Conv", "x w", **WINDOW), node("Identity", "x", "z")]
    feeds = {"x": values(1, 3, 8, 8)}
    assert_same(*computed(tmp_path, nodes, feeds, ("y", "z"), w=values(8, 3, 3, 3)))


def test_inputs_are_made_contiguous(tmp_path):
    wide = values(1, 8, 8, 16)
    assert_same(*computed(tmp_path, [node("Relu", "x")], {"x": wide[..., ::2]}))
    columns = [node("Slice", "x s e a", "z"), node("Relu", "z")]
    ends = {"s": integers(3), "e": integers(11), "a": integers(3)}
    assert_same(*computed(tmp_path, columns, {"x": wide}, **ends))


def test_pixels_become_numbers(tmp_path):
    nodes = [node("Cast", "x", "f", to=FLOAT), node("Mul", "f c")]
    pixels = np.arange(192, dtype=np.uint8).reshape(1, 3, 8, 8)
    assert_same(*computed(tmp_path, nodes, {"x": pixels}, c=np.float32(1 / 255)))


def test_maps_may_travel_in_16_bits(tmp_path):
    made = TensorProto.FLOAT16
    nodes = [
        node("Cast", "x", "f", to=FLOAT),
        node("Conv", "f w", "c", **WINDOW),
        node("Cast", "c", to=made),
    ]
    feeds = {"x": values(*CUBE).astype(np.float16)}
    results, expected = computed(tmp_path, nodes, feeds, made=made, w=values(8, 8, 3, 3))
    assert results["y"].dtype == expected["y"].dtype == np.float16
    assert np.abs(results["y"] - expected["y"]).max() <= 1e-3 * np.abs(expected["y"]).max()


@pytest.mark.parametrize("has", [True, False])
@pytest.mark.parametrize("precision", ["exact", "fp16", "int8"])
def test_halves_are_for_models_that_allow_them_on_processors_that_have_them(
    tmp_path, monkeypatch, precision, has
):
    chosen, net = [], Ncnn.net
    monkeypatch.setattr("worker.engines.ncnn.has_half_arithmetic", lambda: has)
    monkeypatch.setattr(
        Ncnn, "net", lambda own, graph, options: chosen.append(options) or net(own, graph, options)
    )
    described = onnx.ModelProto.FromString(model([node("Relu", "x")], {"x": CUBE}, "y", {}))
    write_precision(described, precision)
    program = Program(described.SerializeToString(), ())
    trial = engine(tmp_path).trial(program, {}, 1)
    trial.bound({"x": values(*CUBE)}, {"y": CUBE}).compute()
    assert {options.halves for options in chosen} == {has and precision != "exact"}


REFUSED = {
    "ConvTranspose in groups": (
        [node("ConvTranspose", "x w", group=2, kernel_shape=[3, 3])],
        CUBE,
        "ConvTranspose in this form",
    ),
    "Erf of two batches": ([node("Relu", "x")], (2, 8, 8, 8), "of shape (2, 8, 8, 8)"),
    "Hardmax": ([node("Hardmax", "x")], CUBE, "the operator Hardmax"),
    "Pad of channels": ([node("Pad", "x p")], CUBE, "Pad of channels"),
    "Slice with steps": ([node("Slice", "x s e a t")], CUBE, "Slice with steps"),
    "transposed batch": (
        [node("Transpose", "x", perm=[1, 0, 2, 3])],
        CUBE,
        "of shape (8, 1, 8, 8)",
    ),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_unknown_operators_are_refused_by_name(tmp_path, name):
    nodes, shape, why = REFUSED[name]
    constants = {"p": integers(0, 1, 0, 0, 0, 0, 0, 0), "s": integers(0), "e": integers(8)}
    constants |= {"a": integers(2), "t": integers(2), "w": values(8, 4, 3, 3)}
    used = {label: constants[label] for entry in nodes for label in entry.input if label != "x"}
    with pytest.raises(BadInput) as raised:
        computed(tmp_path, nodes, {"x": values(*shape)}, **used)
    assert why in raised.value.cause


@pytest.mark.parametrize(
    ("biased", "limit", "fits"), [(0, 0, True), (0, -4, False), (1, 32, True), (1, 28, False)]
)
def test_a_matrix_is_taken_exactly_where_costs_say_so(tmp_path, monkeypatch, biased, limit, fits):
    matrix, bias = values(8, 8), values(8, seed=1)
    limits = {"ncnn": matrix.nbytes + limit}
    monkeypatch.setattr("worker.engines.ncnn_layers.LARGEST_MATRIX_BYTES", limits)
    monkeypatch.setattr("coordinator.costs.affine.LARGEST_MATRIX_BYTES", limits)
    names = ("w", "b")[: 1 + biased]
    constants = dict(zip(names, (matrix, bias), strict=False))
    nodes = [node("Gemm", " ".join(("x", *names)))]
    program = Program(model(nodes, {"x": (1, 8)}, "y", constants), ())
    (work,) = works_of(program, {"x": (1, 8)})
    costs = RateCosts(gflops=1.0, engine="ncnn")
    assert math.isfinite(costs.program_s([work])) is fits
    with nullcontext() if fits else pytest.raises(BadInput, match="onnxruntime maps"):
        computed(tmp_path, nodes, {"x": values(1, 8)}, **constants)


@pytest.mark.parametrize("threads", [1, 2])
def test_programs_of_all_shapes_are_computed_as_by_onnxruntime(tmp_path, threads):
    built = engine(tmp_path, threads)
    program, blobs = conv_program()
    for ref in program.weights:
        (tmp_path / "blobs" / ref.sha256).write_bytes(blobs.bytes_of(ref.sha256))
    built.prepare(program)
    loaded = built.load(program.sha256)
    runs = []
    for rows, columns in ((12, 10), (7, 33), (12, 10)):
        x = picture(rows, columns)
        runs.append((x, loaded.bound({"x": x}, {"y": x.shape})))
    for x, run in runs:
        y = run.compute()["y"]
        assert np.abs(y - whole(x)).max() <= 1e-6 * np.abs(y).max()


def test_programs_with_the_same_layers_share_a_net(tmp_path):
    built = engine(tmp_path)
    program, blobs = conv_program()
    renamed, _ = conv_program(blobs, names=("in", "out"))
    loaded = []
    for each, x in ((program, "x"), (renamed, "in")):
        for ref in each.weights:
            (tmp_path / "blobs" / ref.sha256).write_bytes(blobs.bytes_of(ref.sha256))
        built.prepare(each)
        loaded.append(built.load(each.sha256))
        for rows in (8, 16):
            shape = (1, 16, rows, 16)
            # As when it is measured: nothing of it is taken, everything is computed.
            (outputs,) = loaded[-1].bound({x: values(*shape)}, {}).compute().values()
            assert outputs.shape == shape
    assert len(built.nets) <= 2  # one in each layout that was faster for a shape


def test_its_threads_sleep_between_layers():
    code = "import worker.engines.ncnn, os; print(os.environ['OMP_WAIT_POLICY'])"
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "passive\n"
