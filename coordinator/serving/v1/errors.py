"""The errors of `/v1` for its OpenAPI document: status, meaning, and answer."""

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
        HTTPStatus.METHOD_NOT_ALLOWED: "The path does not accept this method.",
        HTTPStatus.CONFLICT: "The Idempotency-Key is that of another request.",
        HTTPStatus.NOT_ACCEPTABLE: "The answer cannot be given in any of the accepted types.",
        HTTPStatus.REQUEST_TIMEOUT: "The body did not come in time.",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too long.",
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "A body of this type cannot be used.",
        HTTPStatus.UNPROCESSABLE_ENTITY: "A parameter is wrong, or no plan fits the devices.",
        HTTPStatus.TOO_MANY_REQUESTS: "This caller sends too many requests: see Retry-After.",
        HTTPStatus.INTERNAL_SERVER_ERROR: "A setting is wrong, or imbrex has failed internally.",
        HTTPStatus.BAD_GATEWAY: "A worker violated the protocol.",
        HTTPStatus.SERVICE_UNAVAILABLE: "Temporarily unavailable: see Retry-After.",
    }.items()
}
