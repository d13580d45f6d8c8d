"""The coordinator's HTTP interface."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request

from coordinator.serving import devices, infer, plans
from coordinator.serving.errors import add_error_handlers
from coordinator.serving.naming import source_of
from coordinator.serving.views import baseline_json, models_json
from protos.errors import Unavailable

if TYPE_CHECKING:
    from coordinator.core import Coordinator

router = APIRouter()


def create_app(coordinator: Coordinator) -> FastAPI:
    """The application that serves one coordinator, which somebody else starts and stops."""
    app = FastAPI(
        title="imbrex",
        version=metadata.version("imbrex"),
        summary="One CNN inference across the devices of a home.",
        redoc_url=None,
    )
    app.state.coordinator = coordinator
    add_error_handlers(app)
    app.include_router(router)
    app.include_router(infer.router)
    app.include_router(plans.router)
    app.include_router(devices.router)
    return app


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """Every model that the coordinator serves."""
    return models_json(_coordinator(request).models())


@router.post("/v1/models/{model}/baseline")
async def baseline(model: str, request: Request) -> dict[str, Any]:
    """Measures the best device running the whole model, in plain onnxruntime."""
    coordinator = _coordinator(request)
    source = source_of(model, coordinator.settings.models)
    served = await coordinator.model(source)
    return baseline_json(served, await coordinator.baseline(source))


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Whether this process answers."""
    return {"status": "ok", "version": metadata.version("imbrex")}


@router.get("/readyz")
async def readyz(request: Request) -> dict[str, str]:
    """Whether requests can be answered; 503 with the reason where they can't."""
    ready, reason = _coordinator(request).readiness()
    if not ready:
        raise Unavailable(cause=reason, cure="Wait, and see `imbrex status`")
    return {"status": "ready"}


def _coordinator(request: Request) -> Coordinator:
    coordinator: Coordinator = request.app.state.coordinator
    return coordinator
