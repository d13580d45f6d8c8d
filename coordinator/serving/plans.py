"""`/v1/plans/{model}`: the plan in force, chosen plans, and plans that somebody gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from coordinator.choice import Choice
from coordinator.cluster.membership import MAX_DEVICES
from coordinator.planning.plan_json import plan_json
from coordinator.serving import bodies
from coordinator.serving.naming import source_of

if TYPE_CHECKING:
    from coordinator.core import Coordinator

router = APIRouter()

_TAKES = {
    "requestBody": {
        "required": True,
        "description": "What `imbrex plan --save PLAN.json` writes.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


def choice(
    strategy: Annotated[str, Query(description="How to plan; else as the coordinator does.")] = "",
    devices: Annotated[
        int | None, Query(ge=1, le=MAX_DEVICES, description="Over so many of the fastest.")
    ] = None,
    plan: Annotated[str, Query(description="The `plan_id` of a plan that was sent.")] = "",
) -> Choice:
    """What a request's query says of its plan."""
    return Choice(strategy, devices or 0, plan)


Chosen = Annotated[Choice, Depends(choice)]


@router.get("/v1/plans/{model}")
async def get_plan(model: str, request: Request, chosen: Chosen) -> dict[str, Any]:
    """The plan in force for a model, or the one that the query chooses; made if need be."""
    coordinator, source = _coordinator(request), _source(model, request)
    return plan_json(*await coordinator.plan(source, chosen))


@router.post("/v1/plans/{model}", openapi_extra=_TAKES)
async def send_plan(model: str, request: Request) -> dict[str, Any]:
    """Keeps a plan for requests that choose it (`?plan=ID`); the one in force stays."""
    coordinator = _coordinator(request)
    body = await bodies.read_body(request, coordinator.settings.max_body_bytes)
    name, plan, network = await coordinator.give_plan(_source(model, request), body, hold=False)
    return {"plan_id": name, "plan": plan_json(plan, network)}


@router.put("/v1/plans/{model}", openapi_extra=_TAKES)
async def hold_plan(model: str, request: Request) -> dict[str, Any]:
    """Puts a plan in force and holds it: nothing replaces it until it is deleted."""
    coordinator = _coordinator(request)
    body = await bodies.read_body(request, coordinator.settings.max_body_bytes)
    _, plan, network = await coordinator.give_plan(_source(model, request), body, hold=True)
    return plan_json(plan, network)


@router.delete("/v1/plans/{model}")
async def release_plan(model: str, request: Request) -> dict[str, Any]:
    """Lets a held plan go: the coordinator plans for this model by itself again."""
    coordinator = _coordinator(request)
    await coordinator.release_plan(_source(model, request))
    return {"model": model, "held": False}


def _coordinator(request: Request) -> Coordinator:
    coordinator: Coordinator = request.app.state.coordinator
    return coordinator


def _source(model: str, request: Request) -> str:
    return source_of(model, _coordinator(request).settings.models)
