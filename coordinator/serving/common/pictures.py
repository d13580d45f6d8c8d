"""From a request's body to its answer, for all interfaces: decode, infer, read.

Decoding and drawing take tens of milliseconds of CPU. They run `beside` the event loop, which keeps
moving other requests' tiles, and only a few at a time, since a decoded photograph is ten times as
large as its file. A waiting request holds the file and the model's input, never the decoded
picture.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from coordinator.answers import IN_FORCE, Answer, PlanChoice, ServedModel
from coordinator.serving.common import names
from models.tensors.selection import NO_SELECTION
from models.vision.detection import Detector
from models.vision.drawing import annotated
from models.vision.image_input import Placement
from models.vision.predictions import RawOutput, VisionPrediction, predictions_of_checked
from models.vision.preprocess import decode_image, image_to_tensor
from protos.errors import BadRequest

if TYPE_CHECKING:
    from coordinator.service import Coordinator

# Level 1: a tenth of the time for a photograph, at only a little more space.
PNG_LEVEL = 1
JPEG_QUALITY = 90


# A 12-megapixel photograph takes 36 MB decoded, and as much again while it is rotated or resized.
AT_A_TIME = 2
_THREADS = ThreadPoolExecutor(AT_A_TIME, "pictures")

Result = TypeVar("Result")
Read = TypeVar("Read", bound="Sent")


async def beside(work: Callable[..., Result], *arguments: object) -> Result:
    """The result of `work`, computed on one of a few threads."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(work, *arguments))


@dataclass(frozen=True, slots=True)
class RequestInput:
    """A request's input tensors, and the file of the picture that they were made from, if any."""

    feeds: Mapping[str, np.ndarray]
    picture: bytes | None = None
    placement: Placement | None = None


class Sent(Protocol):
    """A decoded request body."""

    @property
    def feeds(self) -> Mapping[str, np.ndarray]:
        """The model's input tensors."""


@asynccontextmanager
async def answered(
    coordinator: Coordinator,
    served: ServedModel,
    read: Callable[[], Read],
    choice: PlanChoice = IN_FORCE,
    *,
    raw: bool = True,
) -> AsyncIterator[tuple[Read, Answer]]:
    """The result of `read`, and the answer while it is read. The body is read `beside` when the
    request's turn has come; until then only the body is kept. Unless `raw`, the answer is only for
    `found_by`.

    Raises:
        ImbrexError: as `read`, and `Coordinator.answering`.
    """
    sent: Read | None = None

    async def feeds() -> Mapping[str, np.ndarray]:
        nonlocal sent
        sent = await beside(read)
        return sent.feeds

    selections = NO_SELECTION if raw else served.selections
    async with coordinator.answering(served, feeds, choice=choice, selections=selections) as answer:
        assert sent is not None, "the feeds are read before there is an answer"
        yield sent, answer


def at_least(served: ServedModel, score: float) -> ServedModel:
    """The model as one request reads it, with this least score of a box.

    Raises:
        BadRequest: it finds no boxes.
    """
    sidecar = served.sidecar
    if sidecar is None or not isinstance(sidecar.head, Detector):
        raise BadRequest(
            cause=f"{served.name} finds no boxes, so none has a score",
            cure="Leave min_score out, or ask a detector",
        )
    head = replace(sidecar.head, min_score=score)
    return replace(served, sidecar=replace(sidecar, head=head))


def asked_of(body: bytes, served: ServedModel) -> RequestInput:
    """The input of a model that takes pictures, from the bytes of one.

    Raises:
        BadImage: they are not a picture that can be used.
        BadRequest: the model takes no pictures.
    """
    assert served.sidecar is not None
    form = served.sidecar.picture
    info = served.network.graph.tensors[form.name]
    tensor, placement = image_to_tensor(decode_image(body), form, info)
    return RequestInput({form.name: tensor}, body, placement)


def found_by(served: ServedModel, asked: RequestInput, answer: Answer) -> list[VisionPrediction]:
    """What the model found, best first; the raw outputs if no picture was sent.

    Raises:
        NotFiniteAnswer: what the model's head reads has NaN, or infinities that mean nothing.
    """
    if served.sidecar is None or asked.placement is None:
        return [RawOutput(name, output) for name, output in answer.outputs.items()]
    predictions = predictions_of_checked(served.sidecar, answer.outputs, asked.placement)
    served.sightings.pictures += 1
    served.sightings.empty += not predictions
    return predictions


def drawn(picture: bytes, seen: list[VisionPrediction], kind: str) -> bytes:
    """The annotated picture as a file of the type `kind` (PNG or JPEG)."""
    file, marked = BytesIO(), annotated(decode_image(picture), seen)
    if kind == names.JPEG:
        marked.save(file, "JPEG", quality=JPEG_QUALITY)
    else:
        marked.save(file, "PNG", compress_level=PNG_LEVEL)
    return file.getvalue()
