"""Whether this process answers, and whether it can be asked."""

from __future__ import annotations

from importlib import metadata

from fastapi import APIRouter

from coordinator.serving.common.access import open_to_all
from coordinator.serving.common.state import TheCoordinator
from protos.errors import Unavailable

router = APIRouter()


@router.get("/healthz")
@open_to_all
async def healthz() -> dict[str, str]:
    """Whether this process answers."""
    return {"status": "ok", "version": metadata.version("imbrex")}


@router.get("/readyz")
@open_to_all
async def readyz(coordinator: TheCoordinator) -> dict[str, str]:
    """Whether requests can be answered; 503 with the reason where they can't."""
    ready, reason = coordinator.served.readiness()
    if not ready:
        raise Unavailable(cause=reason, cure="Wait, and see `imbrex status`")
    return {"status": "ready"}
