"""`/v1/plans/{model}`: the plan in force, chosen plans, and plans that clients send."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from coordinator.answers import PlanNow
from coordinator.planning.plan_json import PlanFile, plan_json
from coordinator.serving.common.access import asks, orders
from coordinator.serving.common.body import BodyKind, body_of
from coordinator.serving.common.parameters import Chosen, ModelName, TheCoordinator
from coordinator.serving.v1.answers import Released
from coordinator.serving.v1.errors import ERRORS

router = APIRouter(responses=ERRORS)

_TAKES = {
    "requestBody": {
        "required": True,
        "description": "A plan as `imbrex plan --save PLAN.json` writes it.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}

# Fields without a value are left out, as in the file of `imbrex plan --save`.
_AS_SET: dict[str, Any] = {"response_model_exclude_unset": True}
_PLAN: dict[str, Any] = {"response_model": PlanFile, **_AS_SET}


class Kept(BaseModel):
    """A plan, and the id to choose it by."""

    plan_id: str
    plan: PlanFile


@router.get("/v1/plans/{model}", **_PLAN)
@asks
async def get_plan(model: ModelName, coordinator: TheCoordinator, chosen: Chosen) -> dict[str, Any]:
    """The plan in force for a model, or the one that the query chooses, if it exists already."""
    return plan_json(*await coordinator.plans.made(coordinator.names.source(model), chosen))


@router.get("/v1/plans/{model}/now")
@asks
async def predict_now(model: ModelName, coordinator: TheCoordinator, chosen: Chosen) -> PlanNow:
    """What the same plan would be predicted to take if it were made now. The plan itself keeps the
    prediction that it was made with.
    """
    return await coordinator.plans.now(coordinator.names.source(model), chosen)


@router.post("/v1/models/{model}/plan", **_PLAN)
@asks.taking(BodyKind.NONE)
async def make_plan(
    model: ModelName, coordinator: TheCoordinator, chosen: Chosen
) -> dict[str, Any]:
    """The same plan, made if necessary: the model is loaded, planned and sent to its devices."""
    return plan_json(*await coordinator.plans.current(coordinator.names.source(model), chosen))


@router.post(
    "/v1/plans/{model}",
    openapi_extra=_TAKES,
    response_model=Kept,
    response_model_exclude_unset=True,
)
@orders.taking(BodyKind.JSON)
async def send_plan(
    model: ModelName, request: Request, coordinator: TheCoordinator
) -> dict[str, Any]:
    """Keeps a plan for requests that choose it (`?plan=ID`); the plan in force stays."""
    body = await body_of(request).read()
    name, plan, network = await coordinator.plans.give(
        coordinator.names.source(model), body, hold=False
    )
    return {"plan_id": name, "plan": plan_json(plan, network)}


@router.put("/v1/plans/{model}", openapi_extra=_TAKES, **_PLAN)
@orders.taking(BodyKind.JSON)
async def hold_plan(
    model: ModelName, request: Request, coordinator: TheCoordinator
) -> dict[str, Any]:
    """Puts a plan in force and holds it: nothing replaces it until it is deleted."""
    body = await body_of(request).read()
    source = coordinator.names.source(model)
    _, plan, network = await coordinator.plans.give(source, body, hold=True)
    return plan_json(plan, network)


@router.delete("/v1/plans/{model}")
@orders
async def release_plan(model: ModelName, coordinator: TheCoordinator) -> Released:
    """Releases a held plan: the coordinator plans for this model automatically again."""
    coordinator.plans.release(coordinator.names.source(model))
    return Released(model=model)
