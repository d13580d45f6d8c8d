"""What routes take: the coordinator that the application serves, a model's name, the choice of a
plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Path, Query, Request

from coordinator.answers import PlanChoice
from coordinator.devices.membership import MAX_DEVICES
from models.tensors.precision import Wire

if TYPE_CHECKING:
    from coordinator.service import Coordinator


async def coordinator_of(request: Request) -> Any:
    """The coordinator behind a request. A coroutine, as `choice` is: FastAPI calls what routes
    depend on in another thread otherwise, which takes longer than all of its work.
    """
    return request.app.state.coordinator


if TYPE_CHECKING:
    TheCoordinator = Coordinator
else:
    # Any object with the coordinator's methods works, so FastAPI must not check its type.
    TheCoordinator = Annotated[Any, Depends(coordinator_of)]

ModelName = Annotated[str, Path(description="As in GET /v1/models.", examples=["digits"])]


async def choice(
    strategy: Annotated[
        str, Query(description="How to plan; by default, as the coordinator does.")
    ] = "",
    devices: Annotated[
        int | None,
        Query(ge=1, le=MAX_DEVICES, description="Use only this many of the fastest devices."),
    ] = None,
    plan: Annotated[str, Query(description="The `plan_id` of a plan that was sent.")] = "",
    wire: Annotated[Wire | None, Query(description="The encoding of maps between devices.")] = None,
) -> PlanChoice:
    """The choice of a plan in a request's query."""
    return PlanChoice(strategy, devices or 0, plan, wire or "")


Chosen = Annotated[PlanChoice, Depends(choice)]
