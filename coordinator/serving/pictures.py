"""A picture through a model: what every surface that takes pictures shares.

Decoding and drawing take tens of milliseconds of CPU: callers run them on threads, so that the
event loop keeps moving other requests' tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import Image

from coordinator.answers import Answer, ServedModel
from coordinator.serving import names
from models.drawing import annotated
from models.predictions import Prediction, Tensor, predictions
from models.preprocess import Placement, decode_image, image_to_pixels, image_to_tensor
from models.sidecar import Sidecar

# Level 1: a photograph takes a tenth of the time, and only a little more space.
PNG_LEVEL = 1
JPEG_QUALITY = 90


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's input tensors, and the picture that they were made of, if they were."""

    feeds: dict[str, np.ndarray]
    picture: Image.Image | None = None
    placement: Placement | None = None


def asked_of(body: bytes, served: ServedModel, sidecar: Sidecar) -> Asked:
    """The model's input from the bytes of a picture.

    Raises:
        BadImage: they are no picture that can be used.
    """
    picture, name = decode_image(body), sidecar.input.name
    tensor: np.ndarray
    if served.network.graph.tensors[name].on_wire.dtype == np.uint8:
        tensor, placement = image_to_pixels(picture, sidecar.input)
    else:
        tensor, placement = image_to_tensor(picture, sidecar.input)
    return Asked({name: tensor}, picture, placement)


def found(served: ServedModel, asked: Asked, answer: Answer) -> list[Prediction]:
    """What the model saw, best first; its outputs as they are where no picture was sent."""
    if served.sidecar is None or asked.placement is None:
        return [Tensor(name, output) for name, output in answer.outputs.items()]
    return predictions(served.sidecar, answer.outputs, asked.placement)


def drawn(picture: Image.Image, seen: list[Prediction], kind: str) -> bytes:
    """The annotated picture as a file of the type `kind` (PNG or JPEG)."""
    file, marked = BytesIO(), annotated(picture, seen)
    if kind == names.JPEG:
        marked.save(file, "JPEG", quality=JPEG_QUALITY)
    else:
        marked.save(file, "PNG", compress_level=PNG_LEVEL)
    return file.getvalue()
