"""`POST /v1/models/{model}/infer`: a picture or tensors in, an answer out.

Decoding and drawing take tens of milliseconds of CPU: they run on threads, so that the event
loop keeps moving other requests' tiles.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from PIL import Image

from coordinator.answers import Answer, ServedModel
from coordinator.serving import bodies, names
from coordinator.serving.errors import NotAcceptable
from coordinator.serving.naming import source_of
from coordinator.serving.plans import Chosen
from coordinator.serving.tensors import read_tensors, write_tensors
from coordinator.serving.views import answer_json, predictions_json
from models.drawing import annotated
from models.predictions import Prediction, Tensor, predictions
from models.preprocess import Placement, decode_image, image_to_pixels, image_to_tensor
from models.sidecar import Sidecar

if TYPE_CHECKING:
    from coordinator.core import Coordinator

router = APIRouter()


_BODIES = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": {"type": "string", "format": "binary"}}
            for kind in ("image/*", names.OCTETS, names.NPZ)
        }
        | {
            names.MULTIPART: {
                "schema": {
                    "type": "object",
                    "required": [names.IMAGE_PART],
                    "properties": {names.IMAGE_PART: {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's input tensors, and the picture that they were made of, if they were."""

    feeds: dict[str, np.ndarray]
    picture: Image.Image | None = None
    placement: Placement | None = None


@router.post("/v1/models/{model}/infer", openapi_extra=_BODIES)
async def infer(model: str, request: Request, chosen: Chosen) -> Response:
    """Runs one picture, or one set of tensors (.npz), through a model.

    Answers with JSON, with the annotated picture (`Accept: image/png`), or with the model's raw
    outputs (`Accept: application/x-npz`). The query may choose how it is planned.
    """
    coordinator: Coordinator = request.app.state.coordinator
    # The body is read before anything is refused: whoever is refused can then read why.
    body = await bodies.read_body(request, coordinator.settings.max_body_bytes)
    source = source_of(model, coordinator.settings.models)
    served = await coordinator.model(source)
    started = time.perf_counter()
    asked, accepted = await _asked(request, body, served)
    decode_s = time.perf_counter() - started
    answer = await coordinator.infer(source, asked.feeds, choice=chosen)
    summary = answer_json(served, answer, decode_s)
    return await asyncio.to_thread(_response, accepted, served, asked, answer, summary)


async def _asked(request: Request, body: bytes, served: ServedModel) -> tuple[Asked, str]:
    """The decoded request, and the type of answer that it wants."""
    sidecar, sent = served.sidecar, bodies.media_type(request)
    if sent == names.NPZ or (sidecar is None and sent in ("", names.OCTETS)):
        accepted = bodies.chosen_type(request, (names.JSON, names.NPZ, names.PNG))
        if accepted == names.PNG:
            raise NotAcceptable(
                cause="there is no picture to draw on: the request is of tensors",
                cure=f"Accept {names.JSON} or {names.NPZ}",
            )
        return Asked(await asyncio.to_thread(read_tensors, body, served.network.graph)), accepted
    if sidecar is None:
        raise bodies.wrong_type(sent, (f"{names.NPZ} ({served.name} takes tensors)",))
    if sent == names.MULTIPART:
        body = await bodies.image_part(request, body)
    elif not (sent.startswith("image/") or sent in ("", names.OCTETS)):
        raise bodies.wrong_type(sent, ("image/jpeg, image/png, ...", names.OCTETS, "a form"))
    accepted = bodies.chosen_type(request, (names.JSON, names.PNG, names.NPZ))
    return await asyncio.to_thread(_decoded, body, served, sidecar), accepted


def _decoded(body: bytes, served: ServedModel, sidecar: Sidecar) -> Asked:
    picture, name = decode_image(body), sidecar.input.name
    info = served.network.graph.tensors[name]
    tensor: np.ndarray
    if info.on_wire.dtype == np.uint8:
        tensor, placement = image_to_pixels(picture, sidecar.input)
    else:
        tensor, placement = image_to_tensor(picture, sidecar.input)
    return Asked({name: tensor}, picture, placement)


def _response(
    accepted: str, served: ServedModel, asked: Asked, answer: Answer, summary: dict[str, Any]
) -> Response:
    headers = {names.REQUEST_ID_HEADER: answer.request_id}
    if accepted == names.JSON:
        found = predictions_json(_predictions(served, asked, answer))
        return JSONResponse({**summary, "predictions": found}, headers=headers)
    headers[names.ANSWER_HEADER] = json.dumps(summary)
    if accepted == names.NPZ:
        return Response(write_tensors(answer.outputs), media_type=names.NPZ, headers=headers)
    assert asked.picture is not None
    drawn = annotated(asked.picture, _predictions(served, asked, answer))
    file = BytesIO()
    # Level 1: a photograph takes a tenth of the time, and only a little more space.
    drawn.save(file, "PNG", compress_level=1)
    return Response(file.getvalue(), media_type=names.PNG, headers=headers)


def _predictions(served: ServedModel, asked: Asked, answer: Answer) -> list[Prediction]:
    if served.sidecar is None or asked.placement is None:
        return [Tensor(name, output) for name, output in answer.outputs.items()]
    return predictions(served.sidecar, answer.outputs, asked.placement)
