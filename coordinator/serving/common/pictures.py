"""A picture through a model: what every surface that takes pictures shares.

Decoding and drawing take tens of milliseconds of CPU: they run `beside` the event loop, which keeps
moving other requests' tiles; few at a time, since a decoded photograph is ten times its file. What
waits for its answer is the file and the model's input, never the decoded picture.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TypeVar

import numpy as np

from coordinator.answers import Answer, ServedModel
from coordinator.serving.common import names
from models.vision.drawing import annotated
from models.vision.placement import Placement
from models.vision.predictions import Prediction, Tensor, predictions
from models.vision.preprocess import decode_image, image_to_pixels, image_to_tensor
from models.vision.sidecar import Sidecar

# Level 1: a photograph takes a tenth of the time, and only a little more space.
PNG_LEVEL = 1
JPEG_QUALITY = 90


# A 12-megapixel photograph takes 36 MB decoded, and as much again while it is turned or resized.
AT_A_TIME = 2
_THREADS = ThreadPoolExecutor(AT_A_TIME, "pictures")

Result = TypeVar("Result")


async def beside(work: Callable[..., Result], *arguments: object) -> Result:
    """What `work` returns, done on one of a few threads."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(work, *arguments))


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's input tensors, and the file of the picture that they were made of, if any."""

    feeds: dict[str, np.ndarray]
    picture: bytes | None = None
    placement: Placement | None = None


def asked_of(body: bytes, served: ServedModel, sidecar: Sidecar) -> Asked:
    """The model's input from the bytes of a picture.

    Raises:
        BadImage: they are no picture that can be used.
    """
    picture, name = decode_image(body), sidecar.input.name
    tensor: np.ndarray
    if any(each.dtype == np.uint8 for each in served.network.graph.tensors[name].accepted):
        tensor, placement = image_to_pixels(picture, sidecar.input)
    else:
        tensor, placement = image_to_tensor(picture, sidecar.input)
    return Asked({name: tensor}, body, placement)


def found(served: ServedModel, asked: Asked, answer: Answer) -> list[Prediction]:
    """What the model saw, best first; its outputs as they are where no picture was sent."""
    if served.sidecar is None or asked.placement is None:
        return [Tensor(name, output) for name, output in answer.outputs.items()]
    return predictions(served.sidecar, answer.outputs, asked.placement)


def drawn(picture: bytes, seen: list[Prediction], kind: str) -> bytes:
    """The annotated picture as a file of the type `kind` (PNG or JPEG)."""
    file, marked = BytesIO(), annotated(decode_image(picture), seen)
    if kind == names.JPEG:
        marked.save(file, "JPEG", quality=JPEG_QUALITY)
    else:
        marked.save(file, "PNG", compress_level=PNG_LEVEL)
    return file.getvalue()
