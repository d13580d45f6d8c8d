"""What the OpenAPI document says of answers: every error, and the answer of an inference."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from coordinator.serving import names

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_COUNT = {"type": "integer"}
_BINARY = {"schema": {"type": "string", "format": "binary"}}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: dict[str, Any], **more: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


_ERROR = {
    names.JSON: {
        "schema": _object(error=_object(code=_TEXT, message=_TEXT, cause=_TEXT, cure=_TEXT))
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
        HTTPStatus.INTERNAL_SERVER_ERROR: "A setting is wrong, or something inside imbrex.",
        HTTPStatus.BAD_GATEWAY: "A worker broke the protocol.",
        HTTPStatus.SERVICE_UNAVAILABLE: "Not now: see Retry-After.",
    }.items()
}

_BOX = _list(_NUMBER, minItems=4, maxItems=4)
_CLASS = _object(label=_TEXT, index=_COUNT, score=_NUMBER)
_FOUND = _object(
    label=_TEXT,
    index=_COUNT,
    score=_NUMBER,
    box=_BOX,
)
_SEGMENT = _object(
    label=_TEXT,
    index=_COUNT,
    share=_NUMBER,
    box=_BOX,
    mask=_object(box=_BOX, size=_list(_COUNT, minItems=2, maxItems=2), counts=_list(_COUNT)),
)
_PICTURE = _object(width=_COUNT, height=_COUNT, png=_TEXT)
_TENSOR = _object(name=_TEXT, shape=_list(_COUNT), data=_list({"type": ["number", "boolean"]}))
_MS = ("queue", "decode", "scatter", "compute", "gather", "total")
_ANSWER = _object(
    request_id=_TEXT,
    model=_TEXT,
    task=_TEXT,
    timing_ms=_object(**dict.fromkeys(_MS, _NUMBER)),
    plan_version=_COUNT,
    devices=_list(_TEXT),
    bytes=_object(scatter=_COUNT, gather=_COUNT, halo=_COUNT),
    predictions=_list({"anyOf": [_FOUND, _CLASS, _SEGMENT, _PICTURE, _TENSOR]}),
)
INFERENCE: dict[int | str, dict[str, Any]] = {
    int(HTTPStatus.OK): {
        "description": "The answer; of several pictures, one each.",
        "content": {
            names.JSON: {"schema": {"anyOf": [_ANSWER, _object(answers=_list(_ANSWER))]}},
            names.PNG: _BINARY,
            names.JPEG: _BINARY,
            names.NPZ: _BINARY,
        },
    }
}
