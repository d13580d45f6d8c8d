"""`/v1/requests/{id}/trace`: where the time of one of the latest requests went."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from coordinator.serving.common.access import asks
from coordinator.serving.common.state import TheCoordinator
from coordinator.serving.v1.schemas import answer, list_of, object_of

router = APIRouter()

_TRACE = answer(
    object_of(
        traceEvents=list_of({"type": "object"}),
        displayTimeUnit={"const": "ms"},
        otherData={"type": "object"},
    ),
    "In Chrome's trace event format.",
)


@router.get("/v1/requests/{request_id}/trace", responses=_TRACE)
@asks
async def trace(request_id: str, coordinator: TheCoordinator) -> dict[str, Any]:
    """Chrome trace events, a row per device and link: opens in https://ui.perfetto.dev."""
    answer: dict[str, Any] = coordinator.trace(request_id)
    return answer
