"""`/v1/models`: the models, and the baseline that every plan is compared with."""

from __future__ import annotations

from dataclasses import asdict, replace

from fastapi import APIRouter

from coordinator.answers import ModelStatus
from coordinator.serving.common.access import asks, orders
from coordinator.serving.common.body import BodyKind
from coordinator.serving.common.parameters import ModelName, TheCoordinator
from coordinator.serving.v1.answers import Alone, Models
from coordinator.serving.v1.errors import ERRORS

router = APIRouter(responses=ERRORS)


@router.get("/v1/models")
@asks
async def models(coordinator: TheCoordinator) -> Models:
    """Lists the models that the coordinator serves."""

    def public(status: ModelStatus) -> ModelStatus:
        name, version = coordinator.names.public(status.name)
        return replace(status, name=name, version=version)

    return Models(
        models=[public(status) for status in coordinator.served.statuses()],
        weight_bytes=coordinator.library.weight_bytes,
        max_models_bytes=coordinator.settings.max_models_bytes,
    )


@router.post("/v1/models/{model}/baseline")
@orders.taking(BodyKind.NONE)
async def baseline(model: ModelName, coordinator: TheCoordinator) -> Alone:
    """Measures the best device on the whole model, by its fastest engine."""
    source = coordinator.names.source(model)
    served = await coordinator.library.get(source)
    return Alone(model=served.name, **asdict(await coordinator.measuring.baseline(source)))
