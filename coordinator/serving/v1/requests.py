"""`/v1/requests/{id}/trace`: the timeline of one of the latest requests."""

from __future__ import annotations

from fastapi import APIRouter

from coordinator.serving.common.access import asks
from coordinator.serving.common.state import TheCoordinator
from coordinator.serving.v1.answers import Trace
from coordinator.serving.v1.errors import ERRORS

router = APIRouter(responses=ERRORS)


@router.get("/v1/requests/{request_id}/trace")
@asks
async def trace(request_id: str, coordinator: TheCoordinator) -> Trace:
    """Chrome trace events with a row per device and link, for https://ui.perfetto.dev."""
    return Trace(**coordinator.trace(request_id))
