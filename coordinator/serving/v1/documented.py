"""What the OpenAPI document says of answers: every error, and the answer of an inference."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from coordinator.serving.common import names
from coordinator.serving.v1.schemas import list_of, object_of

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_COUNT = {"type": "integer"}
_BINARY = {"schema": {"type": "string", "format": "binary"}}


_ERROR = {
    names.JSON: {
        "schema": object_of(error=object_of(code=_TEXT, message=_TEXT, cause=_TEXT, cure=_TEXT))
    }
}
ERRORS: dict[int | str, dict[str, Any]] = {
    int(status): {"description": text, "content": _ERROR}
    for status, text in {
        HTTPStatus.BAD_REQUEST: "What was sent cannot be used.",
        HTTPStatus.UNAUTHORIZED: "API keys are in use, and none that is known was sent.",
        HTTPStatus.FORBIDDEN: "The key may not do this, or a page of another site asks.",
        HTTPStatus.NOT_FOUND: "No such model, device, plan or request.",
        HTTPStatus.METHOD_NOT_ALLOWED: "The path takes other methods.",
        HTTPStatus.NOT_ACCEPTABLE: "The answer cannot be given as any type that is accepted.",
        HTTPStatus.REQUEST_TIMEOUT: "The body did not come in time.",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too long.",
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "A body of this type cannot be used.",
        HTTPStatus.UNPROCESSABLE_ENTITY: "A parameter is wrong, or no plan fits the devices.",
        HTTPStatus.TOO_MANY_REQUESTS: "This caller asks too often: see Retry-After.",
        HTTPStatus.INTERNAL_SERVER_ERROR: "A setting is wrong, or something inside imbrex.",
        HTTPStatus.BAD_GATEWAY: "A worker broke the protocol.",
        HTTPStatus.SERVICE_UNAVAILABLE: "Not now: see Retry-After.",
    }.items()
}

_BOX = list_of(_NUMBER, minItems=4, maxItems=4)
_CLASS = object_of(label=_TEXT, index=_COUNT, score=_NUMBER)
_FOUND = object_of(
    label=_TEXT,
    index=_COUNT,
    score=_NUMBER,
    box=_BOX,
)
_SEGMENT = object_of(
    label=_TEXT,
    index=_COUNT,
    share=_NUMBER,
    box=_BOX,
    mask=object_of(box=_BOX, size=list_of(_COUNT, minItems=2, maxItems=2), counts=list_of(_COUNT)),
)
_PICTURE = object_of(width=_COUNT, height=_COUNT, png=_TEXT)
_TENSOR = object_of(
    name=_TEXT, shape=list_of(_COUNT), data=list_of({"type": ["number", "boolean"]})
)
_MS = ("queue", "decode", "scatter", "compute", "gather", "total")
_ANSWER = object_of(
    request_id=_TEXT,
    model=_TEXT,
    task=_TEXT,
    timing_ms=object_of(**dict.fromkeys(_MS, _NUMBER)),
    plan_version=_COUNT,
    devices=list_of(_TEXT),
    bytes=object_of(scatter=_COUNT, gather=_COUNT, halo=_COUNT),
    predictions=list_of({"anyOf": [_FOUND, _CLASS, _SEGMENT, _PICTURE, _TENSOR]}),
)
INFERENCE: dict[int | str, dict[str, Any]] = {
    int(HTTPStatus.OK): {
        "description": "The answer; of several pictures, one each.",
        "content": {
            names.JSON: {"schema": {"anyOf": [_ANSWER, object_of(answers=list_of(_ANSWER))]}},
            names.PNG: _BINARY,
            names.JPEG: _BINARY,
            names.NPZ: _BINARY,
        },
    }
}
