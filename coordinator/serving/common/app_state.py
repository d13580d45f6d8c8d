"""The coordinator that an application serves, as routes get it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Path, Request

if TYPE_CHECKING:
    from coordinator.service import Coordinator


def coordinator_of(request: Request) -> Any:
    """The coordinator behind a request."""
    return request.app.state.coordinator


if TYPE_CHECKING:
    TheCoordinator = Coordinator
else:
    # Any object with the coordinator's methods works, so FastAPI must not check its type.
    TheCoordinator = Annotated[Any, Depends(coordinator_of)]

ModelName = Annotated[str, Path(description="As in GET /v1/models.", examples=["digits"])]
