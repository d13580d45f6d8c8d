"""What is guessed of networks as their exporters write them."""

from __future__ import annotations

import pytest
from onnx import ModelProto, TensorProto, helper

from models.catalogue.guess import Guess, guess, metadata, takes_pictures
from models.downloads import read_manifest
from models.graph.graph import Graph
from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.importer import load_graph
from models.vision.anchored_grids import YoloV2, YoloV3
from models.vision.box_lists import RtDetr, YoloBoxes, YoloX
from models.vision.classes import ClassMap, ClassScores
from models.vision.head import VisionTask
from models.vision.model_families import PIXELS, About, described, head_for, image_input
from models.vision.ssd import Ssd
from models.vision.yolo_parts import YoloPose, YoloRotated, YoloSegments

Shape = tuple[int, ...]


def made(*outputs: Shape, size: tuple[int, int] = (64, 64), op: str = "") -> Graph:
    """A network from a picture of `size` to outputs of these shapes."""
    net = NetworkBuilder("made", seed=1)
    x = net.input("image", (1, 3, *size)).conv("conv", 1, square(3)).relu()
    mean = x.global_average_pool("mean").flatten("flat")
    ends = []
    for number, shape in enumerate(outputs):
        sizes = net.integers(f"sizes{number}", shape)
        ends.append(net.node("Expand", f"out{number}", [mean.name, sizes], shape))
    if op:
        axis = {"axis": -1} if op == "Softmax" else {}
        ends[0] = net.node(op, "last", [ends[0].name], outputs[0], **axis)
    return load_graph(net.model(*ends), "made")


ULTRALYTICS = {"names": {0: "person", 1: "car"}, "stride": 8, "task": "detect", "imgsz": [64, 64]}


def test_an_ultralytics_export_says_everything() -> None:
    graph = made((1, 6, 84))
    found = guess(graph, ULTRALYTICS, None, 0)
    assert found == Guess("detection", 2, ("person", "car"), "unit")
    head = head_for(graph, "detection", ("person", "car"), "unit", {})
    assert isinstance(head, YoloBoxes)
    assert head.type == "yolov8"
    older = made((1, 252, 7))
    assert guess(older, ULTRALYTICS, None, 0).task == "detection"
    head = head_for(older, "detection", ("person", "car"), "unit", {})
    assert isinstance(head, YoloBoxes)
    assert head.type == "yolov5"


@pytest.mark.parametrize(
    ("task", "shapes", "more", "head"),
    [
        (
            "segment",
            [(1, 38, 84), (1, 32, 16, 16)],
            {},
            YoloSegments("yolov8-seg", "out0", "out1", 32, 0.25, 0.45),
        ),
        (
            "pose",
            [(1, 23, 84)],
            {"kpt_shape": [17, 1]},
            None,
        ),
        (
            "pose",
            [(1, 57, 84)],
            {"kpt_shape": [17, 3]},
            YoloPose("yolov8-pose", "out0", 17, True, 0.25, 0.45),
        ),
        (
            "pose",
            [(1, 40, 84)],
            {"kpt_shape": [17, 2]},
            YoloPose("yolov8-pose", "out0", 17, False, 0.25, 0.45),
        ),
        ("obb", [(1, 7, 84)], {}, YoloRotated("yolov8-obb", "out0", 0.25, 0.45)),
        ("obb", [(1, 9, 84)], {}, None),
        ("segment", [(1, 38, 84)], {}, None),
    ],
)
def test_an_ultralytics_export_for_more_than_boxes_is_recognised(
    task: str, shapes: list[Shape], more: dict[str, object], head: object
) -> None:
    graph, told = made(*shapes), ULTRALYTICS | {"task": task} | more
    found = guess(graph, told, None, 0)
    assert (found.task, found.classes, found.labels) == ("detection", 2, ("person", "car"))
    assert head_for(graph, "detection", ("person", "car"), "unit", told) == head


@pytest.mark.parametrize(
    ("task", "shapes", "head"),
    [
        (
            "segment",
            [(1, 30, 38), (1, 32, 16, 16)],
            YoloSegments("end2end-seg", "out0", "out1", 32, 0.25, 1.0),
        ),
        ("pose", [(1, 30, 57)], YoloPose("end2end-pose", "out0", 17, True, 0.25, 1.0)),
        ("obb", [(1, 30, 7)], YoloRotated("end2end-obb", "out0", 0.25, 1.0)),
        ("obb", [(1, 30, 8)], None),
    ],
)
def test_an_end_to_end_export_for_more_than_boxes_is_recognised(
    task: str, shapes: list[Shape], head: object
) -> None:
    told = {**ULTRALYTICS, "task": task, "end2end": True, "kpt_shape": [17, 3]}
    graph = made(*shapes)
    assert guess(graph, told, None, 0).labels == ("person", "car")
    assert head_for(graph, "detection", ("person", "car"), "unit", told) == head


@pytest.mark.parametrize("queries", [4, 300])
def test_rows_without_an_objectness_are_an_rt_detr_s(queries: int) -> None:
    graph = made((1, queries, 6))
    told = {**ULTRALYTICS, "end2end": False}
    found = guess(graph, told, None, 0)
    assert (found.task, found.classes, found.labels) == ("detection", 2, ("person", "car"))
    head = head_for(graph, "detection", ("person", "car"), "unit", told)
    assert head == RtDetr("rtdetr", 0.25)
    about = About("queries", "queries.onnx")
    sidecar = described(graph, "detection", head, ("person", "car"), "unit", about)
    assert sidecar.input.resize == "stretch"


@pytest.mark.parametrize(
    ("shapes", "task", "classes"),
    [
        ([(1, 1000)], "classification", 1000),
        ([(1, 7, 1, 1)], "tensor", 0),
        ([(1, 512)], "tensor", 0),  # an embedding
        ([(1, 84, 84)], "detection", 80),  # a box for each cell of the grids
        ([(1, 252, 85)], "detection", 80),  # three
        ([(1, 84, 8400)], "tensor", 0),
        ([(1, 100, 85)], "tensor", 0),  # text
        ([(1, 64, 64)], "tensor", 0),  # depth
        ([(1, 125, 2, 2)], "detection", 20),
        ([(1, 255, 8, 8), (1, 255, 4, 4), (1, 255, 2, 2)], "detection", 80),
        ([(1, 30, 4), (1, 30, 21)], "detection", 20),
        ([(1, 21, 64, 64)], "segmentation", 21),
        ([(1, 12, 8, 8)], "tensor", 0),
        ([(1, 3, 64, 64)], "tensor", 0),  # three classes, or a picture
        ([(1, 3, 128, 128)], "image-to-image", 0),
        ([(1, 5, 64)], "tensor", 0),
        ([(2, 9)], "tensor", 0),
    ],
)
def test_shapes_say_what_a_network_is_for(
    shapes: list[Shape], task: VisionTask | None, classes: int
) -> None:
    found = guess(made(*shapes), {}, None, 0)
    assert (found.task, found.classes) == (task, classes)


def test_labels_are_those_of_the_data_set_that_has_as_many() -> None:
    names = guess(made((1, 1000)), {}, None, 0).labels
    assert names is not None
    assert (names[0], names[207], len(names)) == ("tench", "golden retriever", 1000)
    coco = guess(made((1, 84, 84)), {}, None, 0).labels
    assert coco is not None
    assert (coco[0], coco[15], coco[-1], len(coco)) == ("person", "cat", "toothbrush", 80)
    voc = guess(made((1, 21, 64, 64)), {}, None, 0).labels
    assert voc is not None
    assert (voc[0], voc[1], voc[-1]) == ("background", "aeroplane", "tvmonitor")
    assert guess(made((1, 7)), {}, None, 0).labels is None


def test_stated_task_decides_between_readings() -> None:
    either = made((1, 3, 64, 64))
    assert guess(either, {}, None, 3).task == "segmentation"
    assert guess(either, {}, "image-to-image", 0).task == "image-to-image"
    assert guess(either, {}, "tensor", 0).task == "tensor"


def test_a_network_that_takes_no_picture_gives_tensors() -> None:
    net = NetworkBuilder("sound", seed=1)
    x = net.input("wave", (1, 2, 8, 64)).conv("conv", 2, square(3))
    assert guess(load_graph(net.model(x), "sound"), {}, None, 0) == Guess("tensor")


def test_heads_follow_the_shapes() -> None:
    scores = head_for(made((1, 10)), "classification", tuple("abcdefghij"), "unit", {})
    assert scores == ClassScores("logits", 5)
    softmax = head_for(made((1, 3), op="Softmax"), "classification", tuple("abc"), "unit", {})
    assert softmax == ClassScores("softmax", 3)
    grid = head_for(made((1, 125, 2, 2)), "detection", ("x",) * 20, "unit", {})
    assert isinstance(grid, YoloV2)
    assert (grid.stride, len(grid.anchors)) == (32, 5)
    grids = made((1, 255, 2, 2), (1, 255, 4, 4), (1, 255, 8, 8))
    scales = head_for(grids, "detection", ("x",) * 80, "unit", {})
    assert isinstance(scales, YoloV3)
    assert scales.strides == (32, 16, 8)
    assert scales.anchors[0][0] == (116, 90)
    assert head_for(grids, "detection", ("x",) * 7, "unit", {}) is None
    cells = head_for(made((1, 84, 85)), "detection", ("x",) * 80, "unit", {})
    assert isinstance(cells, YoloX)  # 8 * 8 + 4 * 4 + 2 * 2
    assert cells.strides == (8, 16, 32)
    shares = made((1, 30, 21), (1, 30, 4), op="Softmax")
    boxes = head_for(shares, "detection", ("x",) * 20, "unit", {})
    assert isinstance(boxes, Ssd)
    assert (boxes.boxes, boxes.scores) == ("out1", "last")


@pytest.mark.parametrize(
    ("outputs", "labels"),
    [
        # DETR's, with logits; YOLOv4's, v5's and v7's, from the finest on or behind a Sigmoid; of
        # unknown length.
        (dict(shapes=((1, 30, 21), (1, 30, 4))), 20),
        (dict(shapes=((1, 255, 8, 8), (1, 255, 4, 4), (1, 255, 2, 2))), 80),
        (dict(shapes=((1, 255, 2, 2), (1, 255, 4, 4), (1, 255, 8, 8)), op="Sigmoid"), 80),
        (dict(shapes=((1,),)), 80),
    ],
)
def test_lookalike_of_a_known_head_is_none(outputs, labels) -> None:
    graph = made(*outputs["shapes"], op=outputs.get("op", ""))
    assert head_for(graph, "detection", ("x",) * labels, "unit", {}) is None


def test_boxes_that_are_decoded_are_not_decoded_again() -> None:
    """YOLOv6 has as many rows as YOLOX."""
    cells = head_for(made((1, 84, 25)), "detection", ("x",) * 20, "unit", {})
    assert isinstance(cells, YoloX)
    boxes = head_for(made((1, 84, 25), op="Exp"), "detection", ("x",) * 20, "unit", {})
    assert isinstance(boxes, YoloBoxes)
    assert boxes.type == "yolov5"


def test_yolox_takes_pictures_as_opencv_reads_them() -> None:
    graph = made((1, 84, 85))
    head = head_for(graph, "detection", ("x",) * 80, "bytes", {})
    told = described(graph, "detection", head, ("x",) * 80, "bytes", About("x", "x.onnx"))
    assert told.input.color == "BGR"


def test_ending_of_a_mask_or_classifier_is_recognised() -> None:
    mask = ("background", "cat")
    shape = (1, 1, 8, 8)
    for op, threshold in (("", 0.0), ("Sigmoid", 0.5)):
        found = head_for(made(shape, op=op), "segmentation", mask, "unit", {})
        assert isinstance(found, ClassMap)
        assert found.threshold == threshold
    net = NetworkBuilder("cast", seed=1)
    x = net.input("image", (1, 3, 16, 16)).conv("conv", 3, square(3))
    x = x.global_average_pool("mean").flatten("flat")
    shares = net.node("Softmax", "shares", [x.name], (1, 3), axis=-1)
    whole = net.node("Identity", "last", [shares.name], (1, 3))
    graph = load_graph(net.model(whole), "cast")
    assert head_for(graph, "classification", tuple("abc"), "unit", {}) == ClassScores("softmax", 3)
    assert head_for(made((7,)), "segmentation", mask, "unit", {}) is None


def test_a_classifier_s_picture_is_cropped_and_a_detector_s_letterboxed() -> None:
    form = image_input(made((1, 10), size=(224, 224)), "classification", "imagenet", None)
    assert (form.resize, form.resize_shorter) == ("centre-crop", 256)
    assert form.mean == PIXELS["imagenet"].mean
    form = image_input(made((1, 6, 84)), "detection", "bytes", None)
    assert (form.resize, form.resize_shorter, form.scale) == ("letterbox", None, 1.0)


def test_metadata_of_any_kind_is_read() -> None:
    model = ModelProto()
    for key, value in (("names", "{0: 'a'}"), ("odd", "__import__('os')"), ("deep", "[" * 2000)):
        model.metadata_props.add(key=key, value=value)
    found = metadata(model)
    assert found["names"] == {0: "a"}
    assert found["odd"] == "__import__('os')"


def test_the_manifest_s_sidecars_fit_networks_of_the_shapes_that_they_are_for() -> None:
    """Their files cannot come here: this is what CONVENTIONS of the zoo say of their tensors."""
    found = read_manifest()
    assert found["tinyyolov2-8"].sidecar.input.name == "image"
    assert len(found["tinyyolov2-8"].sidecar.labels) == 20
    assert found["mobilenetv2-12"].sidecar.input.resize_shorter == 256
    assert len(found["mobilenetv2-12"].sidecar.labels) == 1000
    yolox = found["yolox-s"].sidecar
    wanted = yolox.head.wanted({"output": ()}, len(yolox.labels), yolox.picture.size)
    assert wanted == {"output": (1, 8400, 85)}
    for each in found.values():
        assert each.file.endswith(".onnx")
        assert each.sidecar.licence in {"MIT", "Apache-2.0"}
        assert each.sidecar.source


@pytest.mark.parametrize(
    ("kind", "fits"),
    [(TensorProto.FLOAT16, True), (TensorProto.FLOAT, True), (TensorProto.DOUBLE, False)],
)
def test_a_picture_is_in_single_or_half_precision(kind: int, fits: bool) -> None:
    value = helper.make_tensor_value_info("x", kind, (1, 3, 8, 8))
    out = helper.make_tensor_value_info("y", kind, (1, 3, 8, 8))
    node = helper.make_node("Relu", ["x"], ["y"])
    model = helper.make_model(
        helper.make_graph([node], "g", [value], [out]),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    assert takes_pictures(load_graph(model, "picture")) is fits
