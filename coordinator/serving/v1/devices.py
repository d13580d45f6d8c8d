"""`/v1/devices`, what was measured of them, and all of them as a cluster file."""

from __future__ import annotations

from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query

from coordinator.answers import DeviceStatus, ProfileStatus
from coordinator.costs.regression import Profile
from coordinator.doctor.findings import Finding
from coordinator.serving.common.access import asks, orders
from coordinator.serving.common.state import TheCoordinator
from coordinator.serving.v1.schemas import answer, list_of, object_of, schema_of
from coordinator.serving.v1.views import device_json, devices_json

router = APIRouter()

_TEXT = {"type": "string"}
_DEVICE = schema_of(DeviceStatus)
_DEVICES = answer(object_of(devices=list_of(_DEVICE)), "Every device.")
_DRAINED = answer(_DEVICE, "The device as it is now.", HTTPStatus.ACCEPTED)
_RESUMED = answer(_DEVICE, "The device as it is now.")
_DOCTOR = answer(object_of(findings=list_of(schema_of(Finding))), "The worst first.")
_STATUS = object_of(
    device=_TEXT,
    name=_TEXT,
    state={"enum": ["unmeasured", "waiting", "measuring", "measured", "failed"]},
    progress={"type": "number", "minimum": 0, "maximum": 1},
    profile={"anyOf": [schema_of(Profile), {"type": "null"}]},
    error={"anyOf": [object_of(code=_TEXT, cause=_TEXT, cure=_TEXT), {"type": "null"}]},
)
_PROFILE = answer(_STATUS, "What was measured; `profile` is null where nothing was.")
_AGAIN = answer(_STATUS, "It is measured when it is idle.", HTTPStatus.ACCEPTED)
_CLUSTER = answer(
    object_of(file=_TEXT, profiles={"type": "object"}), "A TOML file, and profiles by file name."
)


@router.get("/v1/devices", responses=_DEVICES)
@asks
async def devices(coordinator: TheCoordinator) -> dict[str, Any]:
    """Every device that the coordinator knows of, ready or not, with the reason."""
    return devices_json(coordinator.devices())


@router.get("/v1/devices/{device}/profile", responses=_PROFILE)
@asks
async def profile(device: str, coordinator: TheCoordinator) -> dict[str, Any]:
    """What was measured of a device (by id or name), and how far measuring is."""
    return _json(coordinator.profile_of(device))


@router.post("/v1/devices/{device}/profile", status_code=HTTPStatus.ACCEPTED, responses=_AGAIN)
@orders
async def profile_again(device: str, coordinator: TheCoordinator) -> dict[str, Any]:
    """Measures a device anew, whenever no request is computed; GET tells when it is done."""
    return _json(coordinator.profile_again(device))


@router.post("/v1/devices/{device}/drain", status_code=HTTPStatus.ACCEPTED, responses=_DRAINED)
@orders
async def drain(device: str, coordinator: TheCoordinator) -> dict[str, Any]:
    """Gives a device (by id or name) no more work until it is resumed. Its state is `draining`
    while it finishes what it was given, then `drained`: it can be switched off.
    """
    return device_json(coordinator.drain(device))


@router.post("/v1/devices/{device}/resume", responses=_RESUMED)
@orders
async def resume(device: str, coordinator: TheCoordinator) -> dict[str, Any]:
    """Uses a device again that was drained, or is in quarantine for wrong results."""
    return device_json(coordinator.resume(device))


@router.get("/v1/doctor", responses=_DOCTOR)
@asks
async def doctor(coordinator: TheCoordinator) -> dict[str, Any]:
    """What is wrong with devices and network, with cause and cure, the worst first. Asks every
    device, has them try each other and listens for announcements: a few seconds.
    """
    return {"findings": [asdict(each) for each in await coordinator.examine()]}


@router.get("/v1/cluster", responses=_CLUSTER)
@asks
async def cluster(
    coordinator: TheCoordinator,
    stem: Annotated[
        str, Query(max_length=64, description="Begins the profiles' file names.")
    ] = "cluster",
) -> dict[str, Any]:
    """The cluster as it is now: a cluster file for `imbrex simulate`, and the profiles' files."""
    described = coordinator.described(stem)
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
