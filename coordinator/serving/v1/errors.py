"""The errors of `/v1`, as its document has them: status, when, and what is answered."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from coordinator.serving.v1.answers import Refusal

ERRORS: dict[int | str, dict[str, Any]] = {
    int(status): {"description": text, "model": Refusal}
    for status, text in {
        HTTPStatus.BAD_REQUEST: "The request is invalid.",
        HTTPStatus.UNAUTHORIZED: "API keys are in use, and no valid one was sent.",
        HTTPStatus.FORBIDDEN: "The key does not permit this, or a page of another site sent it.",
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
        HTTPStatus.SERVICE_UNAVAILABLE: "Temporarily unavailable: see Retry-After.",
    }.items()
}
