"""Usual settings of families of networks: pixels, anchors, thresholds, heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from models.graph.graph import Graph, operators_behind, results_of
from models.graph.sizes import layout_of
from models.operators import moves
from models.tensors.arrays import Shape
from models.vision.anchored_grids import Anchors, YoloV2, YoloV3
from models.vision.box_lists import FINISHED, EndToEnd, RtDetr, YoloBoxes, YoloX
from models.vision.classes import ClassMap, ClassScores
from models.vision.head import VisionTask
from models.vision.heads import Head
from models.vision.image_input import ImageInput, Resize
from models.vision.repainted import Repainted
from models.vision.sidecar import LABELLESS, Assumable, Sidecar
from models.vision.ssd import Ssd
from models.vision.yolo_parts import YoloPose, YoloRotated, YoloSegments
from protos.daemon.documents import read

Labels = tuple[str, ...]

MIN_SCORE, NMS_IOU = 0.25, 0.45
TOP = 5
# Anchors of each published network of the family: [YOLO9000; YOLOv3, its .cfg files].
VOC_V2: Anchors = ((1.08, 1.19), (3.42, 4.41), (6.63, 11.38), (9.42, 5.11), (16.62, 10.52))
COCO_V2: Anchors = (
    (0.57273, 0.677385),
    (1.87446, 2.06253),
    (3.33843, 5.47434),
    (7.88282, 3.52778),
    (9.77052, 9.16828),
)
COCO_V3: dict[int, Anchors] = {
    8: ((10, 13), (16, 30), (33, 23)),
    16: ((30, 61), (62, 45), (59, 119)),
    32: ((116, 90), (156, 198), (373, 326)),
}
COCO_V3_TINY: dict[int, Anchors] = {
    16: ((10, 14), (23, 27), (37, 58)),
    32: ((81, 82), (135, 169), (344, 319)),
}
STRIDES_X = (8, 16, 32)
# Ultralytics' tasks that find more of each object than its box.
PARTS = frozenset({"segment", "pose", "obb"})
# Strides of YOLOv5 and YOLOX; larger YOLOv5 networks have a fourth grid.
_USUAL_STRIDES = (STRIDES_X, (8, 16, 32, 64))


@dataclass(frozen=True, slots=True)
class Normalisation:
    """A conversion of pixels (0 to 255) to the values that a network was trained on."""

    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class About:
    """A model's name, the name of the file that it came in, and who may use it."""

    name: str
    file: str
    licence: str = "not said"
    source: str | None = None


# What makes probabilities; what makes boxes of offsets from cells; what leaves values as they are.
_SHARES = frozenset({"Softmax", "Sigmoid", "HardSigmoid"})
_DECODING = frozenset({"Mul", "Exp", "Add", "Sub"})
_STORING = frozenset({"Cast", "Identity", "QuantizeLinear", "DequantizeLinear"})

# Types of a picture's values.
_PICTURES = ("float32", "float16", "uint8")

_ZERO, _ONE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
PIXELS = {
    "imagenet": Normalisation(1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "unit": Normalisation(1 / 255, _ZERO, _ONE),
    "signed": Normalisation(1 / 255, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "bytes": Normalisation(1.0, _ZERO, _ONE),
}
# The factor and the offset from a network's output to a picture's pixels.
_PAINTED = {"unit": (255.0, 0.0), "signed": (127.5, 127.5)}


def head_for(
    graph: Graph, task: VisionTask, labels: Labels, pixels: str, told: Mapping[str, object]
) -> Head | None:
    """The head for a graph's outputs and a task; None if it cannot be determined. An output picture
    has pixels in the form of the input's. `told`: the graph's metadata.
    """
    shapes = {name: graph.shape(name) for name in graph.outputs}
    first, shape = next(iter(shapes.items()))
    are_shares = bool(_SHARES & _makers(graph, first))
    match task:
        case "tensor":
            return None
        case "classification":
            return ClassScores("softmax" if are_shares else "logits", min(TOP, len(labels)))
        case "segmentation":
            return _class_map(shape, labels, are_shares=are_shares)
        case "image-to-image":
            return Repainted("pixels", *_PAINTED.get(pixels, (1.0, 0.0)))
        case "detection":
            return _detector(graph, shapes, len(labels), told)


def _class_map(shape: Shape, labels: Labels, *, are_shares: bool) -> ClassMap | None:
    if len(shape) != 4:
        return None
    background = labels[0] if labels[0].strip("_") == "background" else None
    if shape[1] == 1:
        return ClassMap("threshold", 0.5 if are_shares else 0.0, background)
    return ClassMap("argmax", 0.0, background)


def described(  # noqa: PLR0913, PLR0917 - all that a sidecar says
    graph: Graph,
    task: VisionTask,
    head: Head | None,
    labels: Labels,
    pixels: str,
    about: About,
    resize: Resize | None = None,
    assumed: Mapping[Assumable, str] = MappingProxyType({}),
) -> Sidecar:
    """The sidecar of a model of which all this is known, or `assumed` for the reasons given.

    Raises:
        Problem: the parts do not go together.
    """
    usual_resize: Resize | None = "stretch" if isinstance(head, RtDetr) else None
    form = image_input(graph, task, pixels, resize or usual_resize)
    if form is not None and isinstance(head, YoloX):
        form = replace(form, color="BGR")
    told = {
        "name": about.name,
        "task": task,
        "description": f"Added from {about.file}",
        "licence": about.licence,
        "source": about.source or about.file,
        "trained": True,
        "labels": labels if task not in LABELLESS else (),
        "input": form,
        "head": head,
        "assumed": dict(assumed),
    }
    return read(Sidecar, told, "sidecar")


def image_input(
    graph: Graph, task: VisionTask, pixels: str, resize: Resize | None
) -> ImageInput | None:
    """How a picture becomes the graph's input; centre crops of classifiers are of 7/8. None if it
    takes no picture.

    Raises:
        Problem: it is larger than a sidecar allows.
    """
    if not takes_pictures(graph):
        return None
    shape = graph.shape(graph.inputs[0])
    layout = layout_of(shape)
    assert layout is not None, "a picture has one"
    size, is_grey = input_size(graph), shape[layout.index("C")] == 1
    usual: Resize = "centre-crop" if task == "classification" else "letterbox"
    chosen, values = resize or usual, PIXELS[pixels]
    longest = max(size)
    told = {
        "name": graph.inputs[0],
        "size": size,
        "resize": chosen,
        "resize_shorter": max(longest, longest * 8 // 7) if chosen == "centre-crop" else None,
        "color": "GREY" if is_grey else "RGB",
        "scale": values.scale,
        "mean": (sum(values.mean) / 3,) if is_grey else values.mean,
        "std": (sum(values.std) / 3,) if is_grey else values.std,
        "pad_value": 114 if chosen == "letterbox" else 0,
        "layout": layout,
    }
    return read(ImageInput, told, "input")


def takes_pictures(graph: Graph) -> bool:
    """Whether the graph's only input is one picture, grey or in colours, in any layout, of bytes or
    floats.
    """
    if len(graph.inputs) != 1:
        return False
    info = graph.tensors[graph.inputs[0]]
    return layout_of(info.shape) is not None and str(info.dtype) in _PICTURES


def takes_bytes(graph: Graph) -> bool:
    """Whether the graph itself converts the pixels that it takes."""
    return graph.tensors[graph.inputs[0]].dtype == np.uint8


def _makers(graph: Graph, output: str) -> set[str]:
    """The operators that make an output's values, behind those that only move or store them."""
    maker = {name: node.proto for node in graph.nodes for name in node.outputs}
    ends = results_of((output,), graph.joined, graph.ending)
    return {op for op in operators_behind(ends, maker, _keeps) if not _keeps(op)}


def _keeps(operator: str) -> bool:
    return moves(operator) or operator in _STORING


def ssd_shapes(shapes: Sequence[Shape]) -> tuple[Shape, Shape] | None:
    """Of the boxes (1, N, 4) and of the scores (1, N, 1 + classes)."""
    if len(shapes) != 2 or any(len(shape) != 3 for shape in shapes) or shapes[0][1] != shapes[1][1]:
        return None
    boxes, scores = sorted(shapes, key=lambda shape: shape[2] != 4)
    return (boxes, scores) if boxes[2] == 4 and scores[2] > 1 and scores[2] != 4 else None


def stride_of(shape: Shape, size: tuple[int, int]) -> int:
    """The side of a grid's cell in pixels of the input; 0 if it is not a whole number."""
    if len(shape) != 4:
        return 0
    strides = {side / cells for side, cells in zip(size, shape[2:], strict=True)}
    (stride,) = strides if len(strides) == 1 else (0.5,)
    return int(stride) if stride.is_integer() and stride > 1 else 0


def input_size(graph: Graph) -> tuple[int, int]:
    """Height and width of the picture that a graph takes."""
    shape = graph.shape(graph.inputs[0])
    layout = layout_of(shape)
    assert layout is not None, "asked only of pictures"
    return shape[layout.index("H")], shape[layout.index("W")]


def is_end_to_end(
    shape: Shape, size: tuple[int, int], classes: int, told: Mapping[str, object]
) -> bool | None:
    """Whether rows of six values are finished boxes; None if they may also be boxes of one class.
    `classes`: their number, 0 if unknown; `told`: the exporter's metadata.
    """
    written = told.get("end2end")
    if len(shape) == 3 and isinstance(written, bool):
        return written and (True if shape[2] == 6 else None)
    if len(shape) != 3 or shape[2] != 6 or shape[1] <= 6:
        return False
    if classes > 1:
        return True
    return False if shape[1] in cell_counts(size) else None


def cell_counts(size: tuple[int, int]) -> frozenset[int]:
    """How many boxes detectors of the usual strides have for a picture of `size`: one for each cell
    of all grids, or three.
    """
    cells = [YoloX("yolox", stride, MIN_SCORE, NMS_IOU).cells(size) for stride in _USUAL_STRIDES]
    return frozenset((*cells, *(3 * cell for cell in cells)))


def every_operator(graph: Graph) -> set[str]:
    """The operators of a graph, those of its tail and its ending among them."""
    bodies = (node.proto.attribute for node in graph.nodes)
    inner = {n.op_type for body in bodies for attribute in body for n in attribute.g.node}
    return {node.proto.op_type for node in graph.nodes} | inner


def ends_in_shares(graph: Graph) -> str:
    """What makes probabilities of a graph's first output; empty if nothing does."""
    return min(_SHARES & _makers(graph, graph.outputs[0]), default="")


def _detector(
    graph: Graph, shapes: Mapping[str, Shape], classes: int, told: Mapping[str, object]
) -> Head | None:
    size, sizes = input_size(graph), list(shapes.values())
    made_by = {name: _makers(graph, name) for name in shapes}
    if told.get("task") in PARTS:
        return _with_parts(shapes, classes, told)
    if len(sizes) == 1 and len(sizes[0]) == 3:
        (by,) = made_by.values()
        return _rows_of_boxes(sizes[0], size, classes, told, is_decoded=bool(_DECODING & by))
    if (both := ssd_shapes(sizes)) is not None:
        boxes, scores = (
            next(name for name, shape in shapes.items() if shape == one) for one in both
        )
        # Logits are a DETR's, whose boxes are centres and sides; others are offsets from priors.
        if made_by[scores] != {"Softmax"} or made_by[boxes] <= {"Conv"}:
            return None
        return Ssd("ssd", boxes, scores, False, "xyxy", (), (0.1, 0.2), MIN_SCORE, NMS_IOU)
    strides = [stride_of(shape, size) for shape in sizes]
    return _grids(strides, classes, are_shares=any(_SHARES & by for by in made_by.values()))


def _grids(strides: Sequence[int], classes: int, *, are_shares: bool) -> Head | None:
    """Of one grid for each of these strides."""
    if len(strides) == 1:
        anchors = {20: VOC_V2, 80: COCO_V2}.get(classes)
        if anchors is None or not strides[0]:
            return None
        return YoloV2("yolov2", anchors, strides[0], MIN_SCORE, NMS_IOU)
    known = COCO_V3_TINY if len(strides) == 2 else COCO_V3
    # YOLOv4, v5 and v7 have grids like these, from the finest on or with Sigmoid: other anchors.
    if classes != 80 or are_shares or list(strides) != sorted(known, reverse=True):
        return None
    return YoloV3(
        "yolov3", tuple(known[stride] for stride in strides), tuple(strides), MIN_SCORE, NMS_IOU
    )


def _with_parts(
    shapes: Mapping[str, Shape], classes: int, told: Mapping[str, object]
) -> Head | None:
    """Of Ultralytics' exports for masks, keypoints and rotated boxes."""
    boxes, *others = shapes
    if len(shapes[boxes]) != 3:
        return None
    is_finished = told.get("end2end") is True
    more = shapes[boxes][2] - FINISHED if is_finished else shapes[boxes][1] - 4 - classes
    overlap = 1.0 if is_finished else NMS_IOU
    match told.get("task"), told.get("kpt_shape"):
        case "segment", _ if len(others) == 1 and more > 0:
            return YoloSegments(
                "end2end-seg" if is_finished else "yolov8-seg",
                boxes,
                others[0],
                more,
                MIN_SCORE,
                overlap,
            )
        case "pose", [int() as points, 2 | 3 as values] if more == points * values:
            return YoloPose(
                "end2end-pose" if is_finished else "yolov8-pose",
                boxes,
                points,
                values == 3,
                MIN_SCORE,
                overlap,
            )
        case "obb", _ if more == 1:
            return YoloRotated(
                "end2end-obb" if is_finished else "yolov8-obb", boxes, MIN_SCORE, overlap
            )
    return None


def _rows_of_boxes(
    shape: Shape,
    size: tuple[int, int],
    classes: int,
    told: Mapping[str, object],
    *,
    is_decoded: bool,
) -> Head | None:
    """Of one output of three dimensions: (1, boxes, values), or with these two exchanged."""
    finished = is_end_to_end(shape, size, classes, told)
    if finished is not False:
        return EndToEnd("end2end", MIN_SCORE) if finished else None
    rows, columns = shape[1:]
    if columns == 4 + classes != rows:  # YOLOv5's and YOLOX's rows also have an objectness
        return RtDetr("rtdetr", MIN_SCORE)
    cells = YoloX("yolox", STRIDES_X, MIN_SCORE, NMS_IOU)
    # YOLOv5 has three boxes in each cell; YOLOv6's are in pixels.
    if rows == cells.cells(size) and not is_decoded:
        return cells
    return YoloBoxes("yolov5" if rows > columns else "yolov8", MIN_SCORE, NMS_IOU)
