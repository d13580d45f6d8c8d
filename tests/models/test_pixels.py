"""Pictures that travel as uint8: bitwise the same answer, and proofs that can fail."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from models.check.check import check, fused
from models.check.tolerance import HALF
from models.cut.cutter import cut
from models.cut.partial import cut_partial
from models.cut.program import BlobSource
from models.cut.units import divide
from models.graph.graph import Graph
from models.onnx_file.importer import load_graph
from models.run.reference import EQUAL, ProgramRunner, WholeModel, compare
from models.tensors.boxes import Box, Span
from models.tensors.wire import Coded, Pixels
from models.vision.image_input import ImageInput
from models.vision.model_families import About, described, takes_pictures
from models.vision.pixels import (
    as_pixels,
    as_values,
    is_exact,
    usual,
    with_encodings,
    with_pixels,
    without_pixels,
)
from models.vision.preprocess import image_to_tensor
from models.vision.sidecar import Sidecar, dump, parse
from tests.examples import examples
from tests.models.model_files import halved
from tests.models.networks import Sketch

IMAGENET = Pixels(1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
RAW = Pixels(1.0, (0.0,) * 3, (1.0,) * 3)
number = st.floats(-300, 300, width=32)
positive = st.floats(1e-4, 300)


def sidecar(pixels: Pixels, name: str = "x", size: tuple[int, int] = (24, 20)) -> Sidecar:
    form = ImageInput(name, size, "stretch", "RGB", pixels.scale, pixels.mean, pixels.std, 114)
    return Sidecar("s", "tensor", "a test", "none", "a test", False, (), form, None)


def sketch(*, depthwise: bool = False) -> onnx.ModelProto:
    made = Sketch((24, 20))
    made.channels["x"] = 3
    group = 3 if depthwise else 1
    tensor = made.conv("x", 6, (3, 3), pads=[1, 1, 1, 1], group=group)
    return made.model([made.conv(tensor, 4, (3, 3), pads=[1, 1, 1, 1])])


def pixels_of(graph: Graph, name: str = "x") -> np.ndarray:
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, graph.shape(name), dtype=np.uint8)


@settings(max_examples=examples(60))
@given(st.builds(Pixels, positive, st.tuples(*[number] * 3), st.tuples(*[positive] * 3)))
def test_onnxruntime_normalises_as_the_host_does(pixels: Pixels) -> None:
    assert is_exact(pixels)


class Reciprocal(Pixels):
    """Multiplies where the sidecar divides: equal up to the last bit, and so not equal."""

    def decode(self, tensor: Coded) -> list[onnx.NodeProto]:
        turned = replace(tensor, constant=lambda label, a: tensor.constant(label, 1 / a))
        nodes = super().decode(turned)
        nodes[-1].op_type = "Mul"
        return nodes


class Swapped(Pixels):
    """Takes blue for red."""

    def decode(self, tensor: Coded) -> list[onnx.NodeProto]:
        def swapped(label: str, array: np.ndarray) -> str:
            return tensor.constant(label, array[::-1] if array.ndim else array)

        return super().decode(replace(tensor, constant=swapped))


def test_encoding_not_equal_to_the_bit_is_noticed() -> None:
    assert is_exact(Pixels(1.0, (0.0,) * 3, IMAGENET.std))
    assert not is_exact(Reciprocal(1.0, (0.0,) * 3, IMAGENET.std))
    assert not is_exact(Swapped(IMAGENET.scale, IMAGENET.mean, IMAGENET.std))


@pytest.mark.parametrize("pixels", [RAW, IMAGENET])
@pytest.mark.parametrize("grid", [(1, 1), (3, 2), (7, 1)])
def test_tiles_of_pixels_give_the_whole_answer(pixels: Pixels, grid: tuple[int, int]) -> None:
    model = sketch()
    network = divide(with_pixels(load_graph(model), sidecar(pixels)))
    feeds = {"x": pixels_of(network.graph)}
    assert check(model, network, grid, fused(network), feeds=feeds).comparison == EQUAL


@pytest.mark.parametrize("pixels", [RAW, IMAGENET])
def test_pixels_become_a_picture_in_half_precision(pixels: Pixels) -> None:
    graph = with_pixels(load_graph(halved(sketch())), sidecar(pixels))
    encoding = graph.tensors["x"].wire
    assert encoding == replace(pixels, half=True)
    values = encoding.values(pixels_of(graph))
    assert values.dtype == np.float16
    assert np.array_equal(encoding.pixels(values), pixels_of(graph))
    assert encoding.pixels(np.nextafter(values, np.float16(0))) is None
    network, feeds = divide(graph), {"x": pixels_of(graph)}
    report = check(halved(sketch()), network, (3, 2), fused(network), feeds=feeds)
    assert report.ok
    assert report.comparison.max_rel_error < HALF / 2


def test_a_half_that_is_rounded_elsewhere_is_noticed() -> None:
    assert is_exact(replace(IMAGENET, half=True))
    assert not is_exact(Swapped(IMAGENET.scale, IMAGENET.mean, IMAGENET.std, half=True))


def test_padding_is_of_the_normalised_map() -> None:
    """Zeros of the pixels would be other values than zeros of the tensor: the comparison above
    can tell them apart.
    """
    model = sketch()
    graph = with_pixels(load_graph(model), sidecar(IMAGENET))
    pixels = pixels_of(graph)
    tensor = IMAGENET.values(pixels)
    wider = np.zeros((1, 3, 26, 22), np.uint8)
    wider[:, :, 1:-1, 1:-1] = pixels
    padded_pixels = IMAGENET.values(wider)
    padded_tensor = np.zeros_like(padded_pixels)
    padded_tensor[:, :, 1:-1, 1:-1] = tensor
    bare = Sketch((26, 22))
    bare.channels["x"] = 3
    bare.conv("x", 6, (3, 3))
    valid = WholeModel(bare.model(["t0"]))
    first = cut(graph, graph.nodes[:1], {"t0": Box.whole(graph.shape("t0"))}, blobs := BlobSource())
    (made,) = ProgramRunner(blobs).run(first.program, {"x": pixels}, ["t0"])
    assert compare({"t0": made}, valid.run({"x": padded_tensor})).max_rel_error < 1e-5
    assert compare({"t0": made}, valid.run({"x": padded_pixels})).max_rel_error > 1e-2


def test_a_tile_of_some_channels_normalises_by_theirs() -> None:
    model = sketch(depthwise=True)
    graph = with_pixels(load_graph(model), sidecar(IMAGENET))
    pixels, blobs = pixels_of(graph), BlobSource()
    box = Box.whole(graph.shape("t0")).replace(1, Span(2, 6))
    tile = cut(graph, graph.nodes[:1], {"t0": box}, blobs)
    assert tile.inputs["x"][1] == Span(1, 3)
    part = np.ascontiguousarray(pixels[tile.inputs["x"].slices()])
    (made,) = ProgramRunner(blobs).run(tile.program, {"x": part}, ["t0"])
    model.graph.output.append(helper.make_tensor_value_info("t0", TensorProto.FLOAT, None))
    whole = WholeModel(model).run({"x": IMAGENET.values(pixels)})["t0"]
    assert compare({"t0": made}, {"t0": whole[:, 2:]}) == EQUAL
    assert compare({"t0": made}, {"t0": whole[:, :4]}) != EQUAL


def classifier(*, flatten: bool) -> onnx.ModelProto:
    """A picture straight into a fully connected layer."""
    weights = np.random.default_rng(3).standard_normal((36, 5), dtype=np.float32)
    nodes = [
        *([] if flatten else [helper.make_node("Relu", ["x"], ["r"])]),
        helper.make_node("Flatten", ["x" if flatten else "r"], ["f"]),
        helper.make_node("Gemm", ["f", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(weights, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("flatten", [True, False])
def test_partial_sums_over_pixels(flatten: bool) -> None:
    model = classifier(flatten=flatten)
    graph = with_pixels(load_graph(model), sidecar(IMAGENET, size=(4, 3)))
    pixels, blobs = pixels_of(graph), BlobSource()
    whole = WholeModel(model).run({"x": IMAGENET.values(pixels)})
    sums = np.zeros((1, 5), np.float32)
    for channels in (Span(0, 1), Span(1, 3)):
        part = Box.whole(graph.shape("x")).replace(1, channels)
        tile = cut_partial(graph, graph.nodes, part, blobs)
        feed = np.ascontiguousarray(pixels[part.slices()])
        sums += ProgramRunner(blobs).run(tile.program, {"x": feed}, ["y"])[0]
    assert compare({"y": sums}, whole).max_rel_error < 1e-5


@pytest.mark.parametrize("beside", [None, sidecar(IMAGENET, name="y")])
def test_network_that_takes_no_pixels_stays_as_it_is(beside: Sidecar | None) -> None:
    graph = load_graph(sketch())
    assert with_pixels(graph, beside) is graph


def test_the_models_own_tensor_is_taken_as_well() -> None:
    graph = with_pixels(load_graph(sketch()), sidecar(IMAGENET))
    pixels = pixels_of(graph)
    values = IMAGENET.values(pixels)
    assert graph.tensors["x"].dtype == np.float32
    assert graph.tensors["x"].on_wire.dtype == np.uint8
    assert np.array_equal(as_values(graph, {"x": pixels})["x"], values)
    assert as_values(graph, {"x": values})["x"] is values
    assert without_pixels(graph).tensors["x"].on_wire.dtype == np.float32
    assert replace(graph.tensors["x"], wire=None) == without_pixels(graph).tensors["x"]


@pytest.mark.parametrize("encoding", [*usual(), IMAGENET, RAW])
def test_a_tensor_of_pixels_is_recognised_to_the_bit(encoding):
    assert is_exact(encoding)
    assert len(usual()) == 4
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    if not encoding.channels_last:
        pixels = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    values = encoding.values(pixels)
    assert (encoding.pixels(values) == pixels).all()
    place = (0, 9, 9, 1) if encoding.channels_last else (0, 1, 9, 9)
    for other in (np.nextafter(values[place], np.float32(np.inf)), np.nan, np.inf, -1e30):
        changed = values.copy()
        changed[place] = other
        assert encoding.pixels(changed) is None


LAYOUTS = {"NCHW": (1, 3, 8, 6), "NHWC": (1, 8, 6, 3), "CHW": (3, 8, 6), "HWC": (8, 6, 3)}


def taking(layout: str, channels: int = 3, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A convolution of a picture (8, 6) in this layout and type, which it converts itself."""
    batched = {"N": 1, "C": channels, "H": 8, "W": 6}
    nodes, source = [], "x"
    if kind != TensorProto.FLOAT:
        nodes.append(helper.make_node("Cast", [source], ["f"], to=TensorProto.FLOAT))
        source = "f"
    if layout.endswith("C"):
        turned = [len(layout) - 1, *range(len(layout) - 1)]
        if "N" in layout:
            turned = [0, 3, 1, 2]
        nodes.append(helper.make_node("Transpose", [source], ["t"], perm=turned))
        source = "t"
    if "N" not in layout:
        nodes.append(helper.make_node("Unsqueeze", [source, "axes"], ["u"]))
        source = "u"
    nodes.append(helper.make_node("Conv", [source, "w"], ["y"], pads=[1, 1, 1, 1]))
    weights = np.random.default_rng(3).standard_normal((4, channels, 3, 3), dtype=np.float32)
    graph = helper.make_graph(
        nodes,
        "taking",
        [helper.make_tensor_value_info("x", kind, [batched[axis] for axis in layout])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 6])],
        [
            numpy_helper.from_array(weights, "w"),
            numpy_helper.from_array(np.array([0], np.int64), "axes"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


FORMS = [(layout, 3, TensorProto.FLOAT) for layout in LAYOUTS] + [
    ("NCHW", 1, TensorProto.FLOAT),
    ("NHWC", 1, TensorProto.FLOAT),
    ("NHWC", 3, TensorProto.UINT8),
    ("HWC", 3, TensorProto.UINT8),
    ("NHWC", 3, TensorProto.FLOAT16),
]


@pytest.mark.parametrize(("layout", "channels", "kind"), FORMS)
def test_a_picture_of_any_form_is_described_sent_and_answered(
    layout: str, channels: int, kind: int
) -> None:
    model = taking(layout, channels, kind)
    plain = load_graph(model)
    assert takes_pictures(plain)
    pixels_name = "bytes" if kind == TensorProto.UINT8 else "imagenet"
    beside = described(plain, "tensor", None, (), pixels_name, About("t", "t.onnx"))
    assert beside.picture.shape == plain.shape("x")
    graph = with_pixels(plain, parse(dump(beside), Path("t.json")))
    assert isinstance(graph.tensors["x"].wire, Pixels) == (kind != TensorProto.UINT8)
    photo = Image.fromarray(np.random.default_rng(1).integers(0, 256, (90, 70, 3), np.uint8))
    tensor, _ = image_to_tensor(photo, beside.picture, graph.tensors["x"])
    assert (tensor.shape, tensor.dtype) == (plain.shape("x"), np.uint8)
    network = divide(graph)
    report = check(model, network, (2, 1), fused(network), feeds={"x": tensor})
    assert report.ok
    # The model's own tensor is recognised as the same picture.
    values = as_values(graph, {"x": tensor})
    sent, encodings = as_pixels(graph, values)
    assert np.array_equal(sent["x"], tensor)
    assert not encodings


@pytest.mark.parametrize(("layout", "channels", "kind"), FORMS)
def test_tensors_travel_in_the_declared_form(layout: str, channels: int, kind: int) -> None:
    """A tensor of the right form that is not made of pixels."""
    plain = load_graph(taking(layout, channels, kind))
    beside = described(plain, "tensor", None, (), "unit", About("t", "t.onnx"))
    for graph in (plain, with_pixels(plain, beside)):
        noise = np.random.default_rng(2).normal(0, 40, plain.shape("x"))
        for values in (noise.astype(graph.tensors["x"].dtype), np.zeros_like(noise, np.uint8)):
            if values.dtype not in graph.tensors["x"].accepted:
                continue
            sent, encodings = as_pixels(graph, {"x": values})
            declared = with_encodings(graph, encodings).tensors["x"].on_wire
            assert (sent["x"].dtype, sent["x"].shape) == (declared.dtype, declared.shape)
