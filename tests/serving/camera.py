"""A detector with a camera's labels: untrained, but its scores spread from 0 to 1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
from onnx import numpy_helper

from models.catalogue import catalogue
from models.onnx_file.builder import NetworkBuilder, square
from models.vision import sidecar
from models.vision.anchored_grids import YoloV2
from models.vision.image_input import ImageInput

LABELS = ("person", "tvmonitor", "sofa", "car")
ANCHORS = ((1.0, 1.0), (2.0, 2.0), (1.0, 2.0))


def save_camera(folder: Path) -> Path:
    """`camera.onnx` and its sidecar."""
    net = NetworkBuilder("camera", seed=4)
    x = net.input("image", (1, 3, 96, 96))
    for number, channels in enumerate((8, 16, 16), start=1):
        x = x.conv(f"conv{number}", channels, square(3)).relu().max_pool(f"p{number}", square(2, 2))
    x = x.max_pool("p4", square(2, 2)).conv("grid", len(ANCHORS) * (5 + len(LABELS)), square(1))
    model = net.model(x)
    for weights in model.graph.initializer:
        if weights.name.startswith("grid"):
            louder = numpy_helper.to_array(weights) * 12
            weights.CopyFrom(numpy_helper.from_array(louder, weights.name))
    path = folder / "camera.onnx"
    onnx.save(model, path)
    digits = catalogue.load("digits").sidecar
    assert digits is not None
    described = replace(
        digits,
        name="camera",
        labels=LABELS,
        input=ImageInput(
            "image", (96, 96), "letterbox", "RGB", 1 / 255, (0.0,) * 3, (1.0,) * 3, 114
        ),
        head=YoloV2("yolov2", ANCHORS, 16, min_score=0.05, nms_iou=0.9),
    )
    (folder / "camera.json").write_text(sidecar.dump(described))
    return path
