"""The routes under `/v1/vision`, and status routes."""

import asyncio
import math
import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from coordinator.serving.common import names
from coordinator.serving.common.access import (
    FORM_FIELD,
    asks,
    asks_by_form,
    guard_form,
    open_to_all,
    require_key_seen,
)
from coordinator.serving.common.body import BodyKind, body_of
from coordinator.serving.common.content import media_type, wrong_type
from coordinator.serving.common.form import pictures_of, read_form
from coordinator.serving.common.interface import OptionalInterface
from coordinator.serving.common.parameters import TheCoordinator
from coordinator.serving.common.pictures import answered, asked_of, at_least, found_by
from coordinator.serving.deepstack.answers import (
    ERRORS,
    MODULE,
    Custom,
    Detected,
    Pong,
    as_coco,
    document,
    rows,
    shape,
)
from models.vision.detection import DetectedBox
from protos.errors import BadConfiguration, BadRequest

MIN_CONFIDENCE = 0.4
# Never the default detector: it reads handwriting, which is not what a camera's client wants.
NO_DETECTOR = "digits"

router = APIRouter(prefix="/v1", responses=ERRORS, tags=["DeepStack"])
_FORM: dict[str, Any] = {
    "type": "object",
    "required": [names.IMAGE_PART],
    "properties": {
        names.IMAGE_PART: {"type": "string", "format": "binary"},
        "min_confidence": {"type": "number", "minimum": 0, "maximum": 1},
        FORM_FIELD: {"type": "string", "description": "Instead of a header."},
    },
}
_DETECTS: dict[str, Any] = {
    "response_model": Detected,
    "openapi_extra": {
        "requestBody": {"required": True, "content": {names.MULTIPART: {"schema": _FORM}}}
    },
}


class DeepStack(OptionalInterface):
    """The interface of DeepStack."""

    router = router
    prefixes = ("/v1/vision", "/v1/status", "/v1/server")
    error = staticmethod(shape)


@router.post("/vision/detection", **_DETECTS)
@asks_by_form.taking(BodyKind.DATA)
async def detection(request: Request, coordinator: TheCoordinator) -> Response:
    """Detects objects with the configured detector."""
    started_s = time.perf_counter()
    picture, least = await _form(request)
    source = _detector(coordinator)
    return await _answer(coordinator, source, picture, least, started_s, coco=True)


@router.post("/vision/custom/list", response_model=Custom)
@router.get("/vision/custom/list", response_model=Custom)
@asks.taking(BodyKind.NONE)
async def custom_list(coordinator: TheCoordinator) -> dict[str, Any]:
    """Lists the detectors that `custom` accepts: those that are loaded."""
    listed = [
        coordinator.names.public(status.name)[0]
        for status in coordinator.served.statuses()
        if status.task == "detection"
    ]
    return {"success": True, "models": listed, "code": 200, "command": "list-custom", **MODULE}


@router.post("/vision/custom/{model}", **_DETECTS)
@asks_by_form.taking(BodyKind.DATA)
async def custom(model: str, request: Request, coordinator: TheCoordinator) -> Response:
    """Detects objects with a named detector, under its own labels."""
    started_s = time.perf_counter()
    picture, least = await _form(request)
    source = coordinator.names.source(model)
    return await _answer(coordinator, source, picture, least, started_s, coco=False)


@router.get("/server/status/ping", response_model=Pong)
@asks
async def server_ping(coordinator: TheCoordinator) -> dict[str, Any]:
    """The same as `ping`, at CodeProject.AI's path."""
    return await ping(coordinator)


@router.get("/status/ping", response_model=Pong)
@open_to_all
async def ping(coordinator: TheCoordinator) -> dict[str, Any]:
    """Tells whether requests can be answered."""
    ready, reason = coordinator.served.readiness()
    return {"success": ready, "message": "ready" if ready else reason, "code": 200, **MODULE}


async def _answer(
    coordinator: TheCoordinator,
    source: str,
    picture: bytes,
    least: float,
    started_s: float,
    *,
    coco: bool,
) -> Response:
    served = await coordinator.library.get(source)
    if served.sidecar is None or served.sidecar.task != "detection":
        task = served.sidecar.task if served.sidecar else "tensor"
        raise BadRequest(
            cause=f"the model {served.name} does not find objects: its task is {task}",
            cure="Use a detection model; a file needs a sidecar that says so",
        )
    if least:
        served = at_least(served, least)
    read = partial(asked_of, picture, served)
    async with answered(coordinator, served, read, raw=False) as (asked, answer):
        seen = await asyncio.to_thread(found_by, served, asked, answer)
    listed = rows([detection for detection in seen if isinstance(detection, DetectedBox)], least)
    command = "detect" if coco else "custom"
    taken_s = time.perf_counter() - started_s
    told = document(as_coco(listed) if coco else listed, answer, command, taken_s)
    return JSONResponse(told, headers={names.REQUEST_ID_HEADER: answer.request_id})


async def _form(request: Request) -> tuple[bytes, float]:
    """The picture and the least confidence from a form, after its caller was admitted."""
    if media_type(request) != names.MULTIPART:
        require_key_seen(request)
        raise wrong_type(media_type(request), (names.MULTIPART,))
    form = await read_form(request, body_of(request).pieces(), partial(guard_form, request))
    require_key_seen(request)
    return pictures_of(form)[0], _least(form.fields.get("min_confidence", ""))


def _least(text: str) -> float:
    if text == "":
        return MIN_CONFIDENCE
    try:
        least = float(text)
    except ValueError:
        least = math.nan
    if not 0.0 <= least <= 1.0:
        raise BadRequest(
            cause="min_confidence is not a number from 0 to 1", cure="Send one (0.4, say), or none"
        )
    return least


def _detector(coordinator: TheCoordinator) -> str:
    """The model that `detection` uses.

    Raises:
        BadConfiguration: none is configured.
    """
    name = coordinator.names.detector
    if not name or name == NO_DETECTOR:
        raise BadConfiguration(
            cause="no object detector is configured"
            + (f": {NO_DETECTOR} reads handwriting" if name else ""),
            cure="Start `imbrex coordinator --detector MODEL` with a detection model, or make an "
            "added one the default: `imbrex models default MODEL`; "
            f"{NO_DETECTOR} answers at /v1/vision/custom/{NO_DETECTOR}",
        )
    return str(coordinator.names.source(name))
