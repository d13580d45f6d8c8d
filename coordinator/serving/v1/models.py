"""`/v1/models`: what can be asked, and the measurement that every plan is compared with."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from coordinator.answers import Baseline, ModelStatus
from coordinator.serving.common.access import asks, orders
from coordinator.serving.common.state import ModelName, TheCoordinator
from coordinator.serving.v1.schemas import answer, list_of, object_of, schema_of
from coordinator.serving.v1.views import baseline_json, models_json

router = APIRouter()

_MODEL = schema_of(ModelStatus)
_MODEL["properties"]["version"] = {"type": "string"}
_BYTES = {"type": "integer", "minimum": 0}
_MODELS = answer(
    object_of(models=list_of(_MODEL), weight_bytes=_BYTES, max_models_bytes=_BYTES),
    "Every model; what their weights take, and beyond what models are let go of.",
)
_BASELINE = answer(schema_of(Baseline), "The best device, and its latency.")


@router.get("/v1/models", responses=_MODELS)
@asks
async def models(coordinator: TheCoordinator) -> dict[str, Any]:
    """Every model that the coordinator serves."""
    return {
        **models_json(coordinator.served.statuses(), coordinator.names),
        "weight_bytes": coordinator.served.weight_bytes,
        "max_models_bytes": coordinator.settings.max_models_bytes,
    }


@router.post("/v1/models/{model}/baseline", responses=_BASELINE)
@orders
async def baseline(model: ModelName, coordinator: TheCoordinator) -> dict[str, Any]:
    """Measures the best device running the whole model, in plain onnxruntime."""
    source = coordinator.names.source(model)
    served = await coordinator.served.get(source)
    return baseline_json(served, await coordinator.baseline(source))
