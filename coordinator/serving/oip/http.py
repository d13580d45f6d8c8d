"""`/v2`: the protocol over HTTP."""

import asyncio
import gzip
import zlib
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from coordinator.serving.common import names
from coordinator.serving.common.access import asks, open_to_all, orders
from coordinator.serving.common.body import BodyKind, body_of
from coordinator.serving.common.errors import Fault
from coordinator.serving.common.repeats import Repeats, RequestKey
from coordinator.serving.oip.answers import (
    ERRORS,
    EmptyResponse,
    InferenceResponse,
    ModelConfig,
    ModelMetadata,
    ModelReady,
    ModelStatistics,
    RepositoryEntry,
    Server,
)
from coordinator.serving.oip.inference_service import InferenceService
from coordinator.serving.oip.json_form import read_json, read_request, split, write_answer
from protos.errors import Unsupported

PREFIX = "/v2"
HEADER_LENGTH = "Inference-Header-Content-Length"
# Tensors of floats compress little, so that a higher level would only cost CPU.
COMPRESSION = 1
_SAME = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.CONFLICT,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.NOT_IMPLEMENTED,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.SERVICE_UNAVAILABLE,
    }
)

router = APIRouter(prefix=PREFIX, responses=ERRORS, tags=["Open Inference Protocol"])
HIDDEN: dict[str, Any] = {"include_in_schema": False}
# Fields without a value are left out.
AS_SET: dict[str, Any] = {"response_model_exclude_unset": True}
EMPTY: dict[str, Any] = {"response_class": Response}
_PICTURE = {"name": "image", "datatype": "FP32", "shape": [1, 3, 2, 2], "data": [0.0] * 12}
_FILE = {"schema": {"type": "string", "format": "binary"}}
INFER: dict[str, Any] = {
    "response_model": InferenceResponse,
    "responses": {
        int(HTTPStatus.OK): {
            "description": "The outputs; those requested as binary data follow the JSON, "
            f"whose length is in `{HEADER_LENGTH}`.",
            "content": {names.OCTETS: _FILE},
        }
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                names.JSON: {"schema": {"type": "object"}, "example": {"inputs": [_PICTURE]}},
                names.OCTETS: _FILE,
            },
        }
    },
}
READY: dict[str, Any] = {
    "response_model": ModelReady,
    "responses": {int(HTTPStatus.BAD_REQUEST): {"description": "The model is not ready."}},
}
_OBJECT = {"requestBody": {"content": {names.JSON: {"schema": {"type": "object"}}}}}
MODEL = "/models/{name}"
VERSION = MODEL + "/versions/{version}"


def shape(fault: Fault) -> Response:
    """The protocol's errors: a text, with few statuses."""
    status = fault.status if fault.status in _SAME else HTTPStatus.BAD_REQUEST
    return JSONResponse({"error": fault.message}, status, fault.headers)


async def _service(request: Request) -> InferenceService:
    service: InferenceService = request.app.state.oip
    return service


AskedService = Annotated[InferenceService, Depends(_service)]


# ---------------------------------------------------------------- health and metadata


@router.get("")
@router.get("/", include_in_schema=False)
@asks
async def server(service: AskedService) -> Server:
    """Describes this server."""
    return Server(**service.server())


@router.get("/health/live", **EMPTY)
@open_to_all
async def live() -> Response:
    """Tells that this process answers."""
    return Response()


@router.get("/health/ready", **EMPTY)
@open_to_all
async def ready(service: AskedService) -> Response:
    """Tells whether every configured model is ready; an empty 400 if not."""
    return Response(status_code=HTTPStatus.OK if service.ready() else HTTPStatus.BAD_REQUEST)


@router.get(MODEL + "/ready", **READY)
@router.get(VERSION + "/ready", **READY)
@asks
async def model_ready(service: AskedService, name: str, version: str = "") -> Response:
    """Tells whether a model is ready; an empty 400 if not."""
    if not service.model_ready(name, version):
        return Response(status_code=HTTPStatus.BAD_REQUEST)
    return JSONResponse({"name": name, "ready": True})


@router.get("/models/stats")
@router.get(MODEL + "/stats")
@router.get(VERSION + "/stats")
@asks
async def stats(service: AskedService, name: str = "", version: str = "") -> ModelStatistics:
    """Counts of a model, or of all, since the start."""
    return ModelStatistics.model_validate({"model_stats": service.counts(name, version)})


@router.get(MODEL)
@router.get(VERSION)
@asks
async def model(service: AskedService, name: str, version: str = "") -> ModelMetadata:
    """A model's versions and tensors."""
    service.require_loaded(name, version)
    return ModelMetadata(**await service.metadata(name, version))


@router.get(MODEL + "/config")
@router.get(VERSION + "/config")
@asks
async def config(service: AskedService, name: str, version: str = "") -> ModelConfig:
    """A model's configuration."""
    service.require_loaded(name, version)
    return ModelConfig(**await service.config(name, version))


# ---------------------------------------------------------------- inference


@router.post(MODEL + "/infer", **INFER)
@router.post(VERSION + "/infer", **INFER)
@asks.taking(BodyKind.DATA)
async def infer(
    service: AskedService, request: Request, name: str, version: str = "", key: RequestKey = None
) -> Response:
    """Computes the outputs for input tensors."""
    body = await body_of(request).read()
    compute = partial(_inferred, service, request, name, version, body)
    if key is None:
        return await compute()
    repeats: Repeats = request.app.state.repeats
    return await repeats.once(request, key, compute)


async def _inferred(
    service: InferenceService, request: Request, name: str, version: str, body: bytes
) -> Response:
    settings = service.coordinator.settings
    parts = split(body, request.headers.get(HEADER_LENGTH), settings.max_json_bytes)
    async with service.answering(name, version, partial(read_request, *parts)) as answer:
        written, header_length = await asyncio.to_thread(write_answer, answer)
    headers = {}
    if header_length is not None:
        headers[HEADER_LENGTH] = str(header_length)
    # The coding for the answer. Only a header with a single coding is a request for it: a list is
    # a library's default, and compressing tensors costs a small coordinator more than it saves.
    accepted = request.headers.get("accept-encoding", "").strip().lower()
    coding = accepted if accepted in ("gzip", "deflate") else ""
    if coding:
        headers["Content-Encoding"] = coding
        written = await asyncio.to_thread(_coded, written, coding)
    kind = names.JSON if header_length is None else names.OCTETS
    return Response(written, media_type=kind, headers=headers)


def _coded(body: bytes, coding: str) -> bytes:
    if coding == "gzip":
        return gzip.compress(body, COMPRESSION, mtime=0)
    return zlib.compress(body, COMPRESSION)


# ---------------------------------------------------------------- repository


@router.post("/repository/index", openapi_extra=_OBJECT, **AS_SET)
@router.post("/repository/{repository}/index", openapi_extra=_OBJECT, **AS_SET)
@asks.taking(BodyKind.JSON)
async def index(
    service: AskedService, request: Request, repository: str = ""
) -> list[RepositoryEntry]:
    """Lists all available models. There is one repository, whatever its name."""
    document = await _document(request)
    return [
        RepositoryEntry(**row) for row in service.index(only_ready=document.get("ready") is True)
    ]


@router.post("/repository/models/{name}/load", openapi_extra=_OBJECT)
@router.post("/repository/{repository}/models/{name}/load", openapi_extra=_OBJECT)
@orders.taking(BodyKind.JSON)
async def load(
    service: AskedService, request: Request, name: str, repository: str = ""
) -> EmptyResponse:
    """Loads a model, or loads it again; answers when it is ready."""
    document = await _document(request)
    parameters = document.get("parameters")
    await service.load(name, parameters if isinstance(parameters, dict) else {})
    return EmptyResponse()


@router.post("/repository/models/{name}/unload", openapi_extra=_OBJECT)
@router.post("/repository/{repository}/models/{name}/unload", openapi_extra=_OBJECT)
@orders.taking(BodyKind.JSON)
async def unload(
    service: AskedService, request: Request, name: str, repository: str = ""
) -> EmptyResponse:
    """Unloads a model until it is loaded again."""
    await _document(request)
    service.unload(name)
    return EmptyResponse()


async def _document(request: Request) -> dict[str, Any]:
    return read_json(await body_of(request).read())


# ---------------------------------------------------------------- Triton's unsupported extensions


@router.get("/logging", **HIDDEN)
@router.get("/trace/{rest:path}", **HIDDEN)
@router.get("/cudasharedmemory/{rest:path}", **HIDDEN)
@router.get("/systemsharedmemory/{rest:path}", **HIDDEN)
@asks
async def told_unsupported(request: Request) -> Response:
    """An extension of Triton that imbrex does not support."""
    raise _unsupported(request)


@router.post("/logging", **HIDDEN)
@router.post("/trace/{rest:path}", **HIDDEN)
@router.post("/cudasharedmemory/{rest:path}", **HIDDEN)
@router.post("/systemsharedmemory/{rest:path}", **HIDDEN)
@orders.taking(BodyKind.NONE)
async def ordered_unsupported(request: Request) -> Response:
    """An extension of Triton that imbrex does not support."""
    raise _unsupported(request)


def _unsupported(request: Request) -> Unsupported:
    return Unsupported(
        cause=f"imbrex does not support {request.url.path}", cure="See the extensions in GET /v2"
    )
