"""Health and readiness."""

from __future__ import annotations

from importlib import metadata

from fastapi import APIRouter

from coordinator.serving.common.access import open_to_all
from coordinator.serving.common.parameters import TheCoordinator
from coordinator.serving.v1.answers import Health, Readiness
from coordinator.serving.v1.errors import ERRORS
from protos.errors import Unavailable

router = APIRouter(responses=ERRORS)


@router.get("/healthz")
@open_to_all
async def healthz() -> Health:
    """Tells that this process answers."""
    return Health(version=metadata.version("imbrex"))


@router.get("/readyz")
@open_to_all
async def readyz(coordinator: TheCoordinator) -> Readiness:
    """Tells whether requests can be answered; if not, 503 with the reason."""
    ready, reason = coordinator.served.readiness()
    if not ready:
        raise Unavailable(cause=reason, cure="Wait, and see `imbrex status`")
    return Readiness()
