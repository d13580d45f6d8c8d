"""The default model: its data, its graph, and how well it reads digits it has never seen."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from PIL import Image

from models.digits import FOLDER, MODEL, SIDECAR
from models.digits.examples import examples
from models.tensors.wire import Pixels
from models.vision.anchored_grids import YoloV2
from models.vision.predictions import check_outputs
from models.vision.quality import EvaluatedPicture, exactly_right, mean_average_precision
from models.vision.sidecar import load
from training.digits import evaluate, network
from training.digits.compose_examples import FORM, SEEDS
from training.digits.detector import Detector
from training.digits.ink import InkPart, bank, random_pen, write
from training.digits.paper import LUMA, MIN_CONTRAST, random_colours
from training.digits.sheets import SHEETS, Format, held_out_sheets, sheet, truth_of

FAST_SHEETS = 20


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector(MODEL)


@pytest.fixture(scope="module")
def proto() -> onnx.ModelProto:
    return onnx.load(MODEL)


def weights_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {item.name: numpy_helper.to_array(item) for item in proto.graph.initializer}


def test_no_digit_image_is_in_both_parts_and_none_is_lost() -> None:
    train, held_out = bank(InkPart.TRAIN), bank(InkPart.HELD_OUT)
    assert not set(train.sources) & set(held_out.sources)
    assert sorted((*train.sources, *held_out.sources)) == list(range(1797))
    assert set(held_out.labels) == set(train.labels) == set(range(10))
    assert len(held_out) == 359


def test_a_seed_always_gives_the_same_sheet() -> None:
    one, again = sheet(InkPart.HELD_OUT, 5), sheet(InkPart.HELD_OUT, 5)
    assert np.array_equal(one.pixels, again.pixels)
    assert one.digits == again.digits
    assert not np.array_equal(one.pixels, sheet(InkPart.HELD_OUT, 6).pixels)
    assert not np.array_equal(one.pixels, sheet(InkPart.TRAIN, 5).pixels)


@pytest.mark.parametrize("form", [Format(), Format(640, 480), Format(300, 416, fewest=3, most=4)])
def test_digits_lie_on_the_sheet_and_never_on_each_other(form: Format) -> None:
    for seed in range(6):
        made = sheet(InkPart.TRAIN, seed, form)
        assert made.pixels.shape == (form.height, form.width, 3)
        assert made.pixels.dtype == np.uint8
        assert 1 <= len(made.digits) <= form.most
        for digit in made.digits:
            x_min, y_min, x_max, y_max = digit.box
            assert 0 <= x_min < x_max <= form.width
            assert 0 <= y_min < y_max <= form.height
            assert 20 * form.unit < y_max - y_min < 140 * form.unit
        for one, other in combinations([digit.box for digit in made.digits], 2):
            apart = (
                one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
            )
            assert apart


def test_a_written_digit_fills_its_box_from_edge_to_edge() -> None:
    rng = np.random.default_rng(0)
    scans = bank(InkPart.TRAIN)
    for index in range(40):
        ink = write(scans.scans[index], random_pen(rng, 60.0))
        assert ink is not None
        edges = (ink.coverage[0], ink.coverage[-1], ink.coverage[:, 0], ink.coverage[:, -1])
        assert all(edge.max() > 0.35 for edge in edges)
        assert 0 <= ink.coverage.min() <= ink.coverage.max() <= 1


def test_ink_is_readable_on_its_paper() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        colours = random_colours(rng)
        assert abs(float((colours.ink - colours.paper) @ LUMA)) >= MIN_CONTRAST - 1e-3


def test_the_graph_is_small_plain_and_cuttable(proto: onnx.ModelProto) -> None:
    kinds = [node.op_type for node in proto.graph.node]
    assert kinds.count("Conv") >= 8
    assert set(kinds) == {"Conv", "Relu", "MaxPool"}
    assert 1e9 <= network.flop() <= 4e9
    assert MODEL.stat().st_size < 5_000_000
    assert proto.ir_version <= 9
    assert [(item.domain, item.version) for item in proto.opset_import] == [("", 17)]
    names = [node.name for node in proto.graph.node]
    assert names[:5] == ["conv1", "conv1_relu", "conv2", "conv2_relu", "pool1"]
    assert len(set(names)) == len(names)


def test_the_cost_is_that_of_the_file(proto: onnx.ModelProto) -> None:
    """Counted again from the file: the weights' shapes and the maps that onnx infers."""
    shapes = {
        value.name: [item.dim_value for item in value.type.tensor_type.shape.dim]
        for graph in [onnx.shape_inference.infer_shapes(proto).graph]
        for value in (*graph.value_info, *graph.output)
    }
    weights = weights_of(proto)
    counted = sum(
        2 * weights[node.input[1]].size * shapes[node.output[0]][2] * shapes[node.output[0]][3]
        for node in proto.graph.node
        if node.op_type == "Conv"
    )
    assert counted == network.flop()


def test_the_file_is_what_the_network_builds_from_its_weights(proto: onnx.ModelProto) -> None:
    assert network.build(weights_of(proto)).SerializeToString() == MODEL.read_bytes()


def test_weights_of_a_wrong_shape_are_refused(proto: onnx.ModelProto) -> None:
    weights = weights_of(proto)
    with pytest.raises(ValueError, match=r"conv3\.bias has shape"):
        network.build(weights | {"conv3.bias": np.zeros(3, dtype=np.float32)})


def test_the_sidecar_fits_the_model() -> None:
    sidecar = load(SIDECAR)
    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    check_outputs(sidecar, {item.name: item.shape for item in session.get_outputs()})
    (given,) = session.get_inputs()
    assert (given.name, given.type) == (sidecar.input.name, "tensor(float)")
    assert given.shape == [1, 3, *sidecar.input.size]
    assert isinstance(sidecar.head, YoloV2)
    assert sidecar.head.anchors == network.ANCHORS
    assert sidecar.head.stride == network.STRIDE
    assert sidecar.input.pixels == Pixels(1.0, (0.0,) * 3, (1.0,) * 3)
    assert sidecar.trained
    assert "CC BY 4.0" in sidecar.licence


def test_the_first_example_is_read_without_a_mistake(detector: Detector) -> None:
    first = examples()[0]
    found = detector.find(Image.open(first.path))
    assert sorted(item.label for item in found) == sorted(item.label for item in first.truth)
    assert exactly_right([EvaluatedPicture(found, first.truth)]) == 1


def test_the_examples_are_held_out_sheets() -> None:
    assert 3 <= len(examples()) == len(SEEDS)
    for example, seed in zip(examples(), SEEDS, strict=True):
        assert seed >= SHEETS
        made = sheet(InkPart.HELD_OUT, seed, FORM)
        assert list(example.truth) == truth_of(made)
        saved = np.asarray(Image.open(example.path)).astype(int)
        # Other versions of Pillow may round or compress a little differently.
        assert np.abs(saved - made.pixels).mean() < 1.0


def test_unseen_digits_are_found_and_read() -> None:
    quality = evaluate.measure(MODEL, FAST_SHEETS)
    assert quality.map_50 >= 0.93
    assert quality.precision > 0.9
    assert quality.recall > 0.9


def test_the_measure_notices_mirrored_sheets() -> None:
    """Mirrored digits are other shapes: a measure that still called them found would be blind."""
    mirrored = [
        replace(made, pixels=np.ascontiguousarray(made.pixels[:, ::-1]))
        for made in held_out_sheets(4)
    ]
    pictures = evaluate.examine(Detector(MODEL, evaluate.MIN_SCORE), iter(mirrored))
    assert mean_average_precision(pictures)[0] < 0.3


def test_an_empty_sheet_is_empty(detector: Detector) -> None:
    for grey in (0, 30, 128, 255):
        assert detector.find(Image.new("RGB", (500, 300), (grey,) * 3)) == []


def test_the_committed_quality_is_of_this_model() -> None:
    quality = json.loads((FOLDER / "quality.json").read_text())
    assert quality["model_sha256"] == hashlib.sha256(MODEL.read_bytes()).hexdigest()
    assert quality["sheets"] == SHEETS == 200
    assert quality["map_50"] >= evaluate.MIN_MAP == 0.95


def test_the_command_says_by_its_exit_code_whether_the_bar_was_reached(
    tmp_path: Path, proto: onnx.ModelProto, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main(["--sheets", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["sheets"] == 4
    weights = weights_of(proto)
    blind = weights | {"conv6.weight": np.zeros_like(weights["conv6.weight"])}
    onnx.save(network.build(blind), tmp_path / "digits.onnx")
    (tmp_path / "digits.json").write_bytes(SIDECAR.read_bytes())
    assert evaluate.main(["--sheets", "4", "--model", str(tmp_path / "digits.onnx")]) == 1
    assert json.loads(capsys.readouterr().out)["map_50"] < 0.5


def test_the_training_log_is_complete() -> None:
    log = json.loads((FOLDER / "training-log.json").read_text())
    steps = [entry["step"] for entry in log["losses"]]
    assert f"--steps {steps[-1]}" in log["command"]
    assert log["losses"][-1]["class"] < log["losses"][0]["class"] / 5


@pytest.mark.slow
def test_the_quality_on_200_sheets_is_the_committed_one() -> None:
    committed = json.loads((FOLDER / "quality.json").read_text())
    assert evaluate.measure(MODEL).map_50 == pytest.approx(committed["map_50"], abs=0.005)
