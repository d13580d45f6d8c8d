"""`/v1/requests/{id}/trace`: where the time of one of the latest requests went."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from coordinator.serving.state import Served

router = APIRouter()


@router.get("/v1/requests/{request_id}/trace")
async def trace(request_id: str, coordinator: Served) -> dict[str, Any]:
    """Chrome trace events, a row per device and link: opens in https://ui.perfetto.dev."""
    answer: dict[str, Any] = coordinator.trace(request_id)
    return answer
