"""`/v1/devices`, what was measured of them, and all of them as a cluster file."""

from __future__ import annotations

from dataclasses import asdict
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request

from coordinator.answers import ProfileStatus
from coordinator.serving.views import devices_json

if TYPE_CHECKING:
    from coordinator.core import Coordinator

router = APIRouter()


@router.get("/v1/devices")
async def devices(request: Request) -> dict[str, Any]:
    """Every device that the coordinator knows of, ready or not, with the reason."""
    return devices_json(_coordinator(request).devices())


@router.get("/v1/devices/{device}/profile")
async def profile(device: str, request: Request) -> dict[str, Any]:
    """What was measured of a device (by id or name), and how far measuring is."""
    return _json(_coordinator(request).profile_of(device))


@router.post("/v1/devices/{device}/profile", status_code=HTTPStatus.ACCEPTED)
async def profile_again(device: str, request: Request) -> dict[str, Any]:
    """Measures a device anew, whenever no request is computed; GET tells when it is done."""
    return _json(_coordinator(request).profile_again(device))


@router.get("/v1/cluster")
async def cluster(
    request: Request,
    stem: Annotated[
        str, Query(max_length=64, description="Begins the profiles' file names.")
    ] = "cluster",
) -> dict[str, Any]:
    """The cluster as it is now: a cluster file for `imbrex simulate`, and the profiles' files."""
    described = _coordinator(request).described(stem)
    return {"file": described.text, "profiles": described.profiles}


def _json(status: ProfileStatus) -> dict[str, Any]:
    failure = status.failure
    return {
        "device": status.device,
        "name": status.name,
        "state": status.state,
        "progress": round(status.progress, 4),
        "profile": asdict(status.profile) if status.profile else None,
        "error": {"code": failure.code, "cause": failure.cause, "cure": failure.cure}
        if failure
        else None,
    }


def _coordinator(request: Request) -> Coordinator:
    coordinator: Coordinator = request.app.state.coordinator
    return coordinator
