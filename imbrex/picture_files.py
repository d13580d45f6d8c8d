"""Files of pictures, and annotated pictures of answers."""

import base64
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from models.vision.classes import ClassProbability, ClassSegment, Overlay, mask_of
from models.vision.detection import DetectedBox
from models.vision.predictions import VisionPrediction
from models.vision.repainted import Repainting
from protos.errors import BadConfiguration, BadRequest

# Of files that are taken as pictures.
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"})


def save_annotated(body: bytes, predictions: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Draws an answer over its picture and writes it.

    Raises:
        BadRequest: the answer is not about a picture.
        BadConfiguration: the file cannot be written.
    """
    from PIL import Image

    from models.vision.drawing import annotated
    from models.vision.preprocess import decode_image

    if any("data" in entry for entry in predictions):
        raise BadRequest(
            cause="this model returns tensors: there is nothing to draw",
            cure="Omit --save, or use a detection, classification or segmentation model",
        )
    picture = annotated(decode_image(body), [prediction(entry) for entry in predictions])
    kind = Image.registered_extensions().get(target.suffix.lower(), "PNG")
    file = BytesIO()
    picture.save(file, kind)
    try:
        target.write_bytes(file.getvalue())
    except OSError as error:
        raise BadConfiguration(
            cause=f"{target} cannot be written ({error.strerror})",
            cure="Give --save a path in a folder that you may write to",
        ) from error


def prediction(fields: Mapping[str, Any]) -> VisionPrediction:
    """The prediction from its JSON."""
    if "png" in fields:
        from PIL import Image

        return Repainting(Image.open(BytesIO(base64.b64decode(fields["png"]))).convert("RGB"))
    label, index = str(fields["label"]), int(fields["index"])
    overlay = None
    if fields.get("mask") is not None:
        mask = fields["mask"]
        rows, columns = mask["size"]
        overlay = Overlay(_corners(mask["box"]), mask_of(mask["counts"], (rows, columns)))
    if "share" in fields:
        assert overlay is not None, "segments have a mask"
        return ClassSegment(label, index, float(fields["share"]), _corners(fields["box"]), overlay)
    if "box" in fields:
        points, corners = fields.get("keypoints"), fields.get("corners")
        return DetectedBox(
            label,
            index,
            float(fields["score"]),
            _corners(fields["box"]),
            overlay,
            None if points is None else tuple(map(tuple, points)),
            None if corners is None else tuple(map(tuple, corners)),
        )
    return ClassProbability(label, index, float(fields["score"]))


def _corners(edges: Sequence[float]) -> tuple[float, float, float, float]:
    x_min, y_min, x_max, y_max = (float(edge) for edge in edges)
    return x_min, y_min, x_max, y_max
