"""The whole model on one machine: picture in, detections out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnxruntime
from PIL import Image

from models.vision.anchored_grids import YoloV2
from models.vision.detection import DetectedBox
from models.vision.predictions import predictions
from models.vision.preprocess import image_to_pixels
from models.vision.sidecar import Sidecar, load, sidecar_path


class Detector:
    """A model file with its sidecar, run by one thread of onnxruntime."""

    def __init__(self, model: Path, min_score: float | None = None) -> None:
        self.sidecar = _with_min_score(load(sidecar_path(model)), min_score)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )

    def find(self, image: Image.Image) -> list[DetectedBox]:
        """The detections in the picture, best first."""
        pixels, placement = image_to_pixels(image, form := self.sidecar.picture)
        names = [output.name for output in self._session.get_outputs()]
        arrays = self._session.run(names, {form.name: form.pixels.values(pixels)})
        found = predictions(self.sidecar, dict(zip(names, arrays, strict=True)), placement)
        return [item for item in found if isinstance(item, DetectedBox)]


def _with_min_score(sidecar: Sidecar, min_score: float | None) -> Sidecar:
    if min_score is None or not isinstance(sidecar.head, YoloV2):
        return sidecar
    return replace(sidecar, head=replace(sidecar.head, min_score=min_score))
