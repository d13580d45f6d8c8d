"""`POST /v1/models/{model}/infer`: pictures or tensors in, answers out; and their timelines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from coordinator.answers import Answer, PlanChoice, ServedModel
from coordinator.serving.common import names
from coordinator.serving.common.access import asks
from coordinator.serving.common.body import BodyKind, body_of
from coordinator.serving.common.content import chosen_type, media_type, wrong_type
from coordinator.serving.common.errors import NotAcceptable
from coordinator.serving.common.form import Form, pictures_of, read_form
from coordinator.serving.common.parameters import Chosen, ModelName, TheCoordinator
from coordinator.serving.common.pictures import (
    RequestInput,
    answered,
    asked_of,
    at_least,
    beside,
    drawn,
    found_by,
)
from coordinator.serving.common.repeats import Repeats, RequestKey
from coordinator.serving.common.tensors import read_tensors, write_tensors
from coordinator.serving.v1.answers import Inference, Inferences, Trace
from coordinator.serving.v1.errors import ERRORS
from models.tensors.arrays import require_finite

router = APIRouter(responses=ERRORS)

Written = TypeVar("Written")

# Media types that say nothing of the content.
_BYTES = ("", names.OCTETS)
_FILE = {"type": "string", "format": "binary"}
_BODIES = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": _FILE} for kind in ("image/*", names.OCTETS, names.NPZ)}
        | {
            names.MULTIPART: {
                "schema": {
                    "type": "object",
                    "required": [names.IMAGE_PART],
                    "properties": {names.IMAGE_PART: {"type": "array", "items": _FILE}},
                }
            }
        },
    }
}
_ANSWERS: dict[str, Any] = {
    "response_model": Inference | Inferences,
    "responses": {
        int(HTTPStatus.OK): {
            "description": "The answer; for several pictures, one each.",
            "content": {kind: {"schema": _FILE} for kind in (names.PNG, names.JPEG, names.NPZ)},
        }
    },
}


@router.post("/v1/models/{model}/infer", openapi_extra=_BODIES, **_ANSWERS)
@asks.taking(BodyKind.DATA)
async def infer(
    model: ModelName,
    request: Request,
    coordinator: TheCoordinator,
    chosen: Chosen,
    sparse: Annotated[
        bool,
        Query(
            description="Of raw outputs, entries that the model's head does not read may be zeros."
        ),
    ] = False,
    min_score: Annotated[
        float | None,
        Query(gt=0, le=1, description="The least score of a box; by default, the sidecar's."),
    ] = None,
    key: RequestKey = None,
) -> Response:
    """Runs pictures, or one set of tensors (.npz), through a model.

    One picture is answered with JSON, with the annotated picture (`Accept: image/png` or
    `image/jpeg`), or with the model's raw outputs (`Accept: application/x-npz`). Several files
    named `image` in one form are answered with `{"answers": [...]}`, in order. The query may choose
    the plan.
    """
    # The body is read before anything is refused, so that the client can read the reason.
    sent = media_type(request)
    form, body = None, b""
    if sent == names.MULTIPART:
        form = await read_form(request, body_of(request).pieces())
    else:
        body = await body_of(request).read()
    read = _Read(sent, body, form)
    compute = partial(_inferred, request, coordinator, model, read, chosen, sparse, min_score)
    if key is None:
        return await compute()
    repeats: Repeats = request.app.state.repeats
    return await repeats.once(request, key, compute)


@router.get("/v1/requests/{request_id}/trace")
@asks
async def trace(request_id: str, coordinator: TheCoordinator) -> Trace:
    """Chrome trace events with a row per device and link, for https://ui.perfetto.dev."""
    return Trace(**coordinator.trace(request_id))


@dataclass(frozen=True, slots=True)
class _Read:
    """A request's body, of the type `sent`: bytes, or a form."""

    sent: str
    body: bytes
    form: Form | None


async def _inferred(
    request: Request,
    coordinator: TheCoordinator,
    model: str,
    read: _Read,
    chosen: PlanChoice,
    sparse: bool,
    min_score: float | None,
) -> Response:
    served = await coordinator.library.get(coordinator.names.source(model))
    if min_score is not None:
        served = at_least(served, min_score)
    if read.sent == names.NPZ or (not served.takes_pictures and read.sent in _BYTES):
        return await _tensors(request, read.body, served, coordinator, chosen, sparse)
    if not served.takes_pictures:
        raise wrong_type(read.sent, (f"{names.NPZ} ({served.name} takes tensors)",))
    if read.form is None and not read.sent.startswith("image/") and read.sent not in _BYTES:
        raise wrong_type(read.sent, ("image/jpeg, image/png, ...", names.OCTETS, "a form"))
    pictures = [read.body] if read.form is None else pictures_of(read.form)
    several = len(pictures) > 1
    offered = (names.JSON,) if several else (names.JSON, names.PNG, names.JPEG, names.NPZ)
    accepted = chosen_type(request, offered)
    raw = accepted == names.NPZ and not sparse

    async def of(picture: bytes, write: Callable[..., Written]) -> Written:
        read = partial(asked_of, picture, served)
        async with answered(coordinator, served, read, chosen, raw=raw) as answer:
            return await beside(write, served, *answer)

    if not several:
        return await of(pictures[0], partial(_response, accepted))
    documents = await _all([of(picture, _document) for picture in pictures])
    return JSONResponse({"answers": documents})


async def _tensors(
    request: Request,
    body: bytes,
    served: ServedModel,
    coordinator: TheCoordinator,
    chosen: PlanChoice,
    sparse: bool,
) -> Response:
    accepted = chosen_type(request, (names.JSON, names.NPZ, names.PNG, names.JPEG))
    if accepted.startswith("image/"):
        raise NotAcceptable(
            cause="there is no picture to draw on: the request has tensors",
            cure=f"Accept {names.JSON} or {names.NPZ}",
        )

    def read() -> RequestInput:
        return RequestInput(read_tensors(body, served.network.graph))

    async with answered(coordinator, served, read, chosen, raw=not sparse) as answer:
        return await asyncio.to_thread(_response, accepted, served, *answer)


async def _all(asking: list[Coroutine[Any, Any, Written]]) -> list[Written]:
    """All answers; or the first error, once all requests have ended."""
    ended = await asyncio.gather(*asking, return_exceptions=True)
    for result in ended:
        if isinstance(result, BaseException):
            raise result
    return [result for result in ended if not isinstance(result, BaseException)]


def _document(served: ServedModel, asked: RequestInput, answer: Answer) -> dict[str, Any]:
    if asked.picture is None:
        for name, output in answer.outputs.items():
            require_finite(output, f"{name!r}, which JSON cannot represent", f"accept {names.NPZ}")
    seen = [prediction.as_json() for prediction in found_by(served, asked, answer)]
    return {**_origin(served, answer), "predictions": seen}


def _origin(served: ServedModel, answer: Answer) -> dict[str, Any]:
    """How an answer was computed (`Origin`, written by hand, since it is on every request's path).
    Here, decoding is part of the total.
    """
    timing = answer.timing
    seconds = {
        "queue": timing.queue_s,
        "decode": answer.decode_s,
        "scatter": timing.scatter_s,
        "compute": timing.compute_s,
        "gather": timing.gather_s,
        "total": timing.total_s + answer.decode_s,
    }
    return {
        "request_id": answer.request_id,
        "model": served.name,
        "task": served.sidecar.task if served.sidecar else "tensor",
        "timing_ms": {phase: round(1000 * spent_s, 3) for phase, spent_s in seconds.items()},
        "plan_version": answer.plan_version,
        "devices": list(answer.devices),
        "bytes": asdict(answer.traffic),
        **({"assumed": served.assumed} if served.assumed else {}),
    }


def _response(accepted: str, served: ServedModel, asked: RequestInput, answer: Answer) -> Response:
    headers = {names.REQUEST_ID_HEADER: answer.request_id}
    if accepted == names.JSON:
        return JSONResponse(_document(served, asked, answer), headers=headers)
    headers[names.ANSWER_HEADER] = json.dumps(_origin(served, answer))
    if accepted == names.NPZ:
        return Response(write_tensors(answer.outputs), media_type=names.NPZ, headers=headers)
    assert asked.picture is not None
    file = drawn(asked.picture, found_by(served, asked, answer), accepted)
    return Response(file, media_type=accepted, headers=headers)
