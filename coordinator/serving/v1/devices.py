"""`/v1/devices`: devices, their profiles, and the cluster as a file."""

from __future__ import annotations

from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query

from coordinator.answers import DeviceStatus, Diagnosis, ProfileStatus
from coordinator.serving.common.access import asks, orders
from coordinator.serving.common.body import BodyKind
from coordinator.serving.common.parameters import TheCoordinator
from coordinator.serving.v1.answers import (
    ClusterFiles,
    DeviceList,
    Profiling,
)
from coordinator.serving.v1.errors import ERRORS

router = APIRouter(responses=ERRORS)


@router.get("/v1/devices")
@asks
async def devices(coordinator: TheCoordinator) -> DeviceList:
    """Lists every known device, ready or not, with the reason."""
    return DeviceList(devices=coordinator.device_statuses())


@router.get("/v1/devices/{device}/profile")
@asks
async def profile(device: str, coordinator: TheCoordinator) -> Profiling:
    """The profile of a device (by id or name), and the progress of its measurement."""
    return _told(coordinator.measuring.profile_of(device))


@router.post("/v1/devices/{device}/profile", status_code=HTTPStatus.ACCEPTED)
@orders.taking(BodyKind.NONE)
async def profile_again(device: str, coordinator: TheCoordinator) -> Profiling:
    """Measures a device again while no request is computed; GET tells when it is done."""
    return _told(coordinator.measuring.profile_again(device))


@router.post("/v1/devices/{device}/drain", status_code=HTTPStatus.ACCEPTED)
@orders.taking(BodyKind.NONE)
async def drain(device: str, coordinator: TheCoordinator) -> DeviceStatus:
    """Gives a device (by id or name) no more work until it is resumed. Its state is `draining`
    while it finishes its present work, then `drained`: it can be switched off.
    """
    return await coordinator.drain(device)


@router.post("/v1/devices/{device}/resume")
@orders.taking(BodyKind.NONE)
async def resume(device: str, coordinator: TheCoordinator) -> DeviceStatus:
    """Uses a device again that was drained, or is in quarantine because of wrong results."""
    return await coordinator.resume(device)


@router.get("/v1/doctor")
@asks
async def doctor(coordinator: TheCoordinator) -> Diagnosis:
    """Checks devices and network; problems have a cause and a cure, the worst first. Questions
    every device, has devices try to reach each other, and listens for announcements; takes a few
    seconds.
    """
    return await coordinator.doctor.examine()


@router.get("/v1/cluster")
@asks
async def cluster(
    coordinator: TheCoordinator,
    stem: Annotated[
        str, Query(max_length=64, description="Prefix of the profiles' file names.")
    ] = "cluster",
) -> ClusterFiles:
    """The present cluster as a cluster file for `imbrex simulate`, with its profiles' files."""
    described = coordinator.described(stem)
    return ClusterFiles(file=described.text, profiles=dict(described.profiles))


def _told(status: ProfileStatus) -> Profiling:
    failure = status.failure
    told = {"code": failure.code, "cause": failure.cause, "cure": failure.cure} if failure else None
    return Profiling.model_validate(
        {
            "device": status.device,
            "name": status.name,
            "state": status.state,
            "progress": round(status.progress, 4),
            "profile": asdict(status.profile) if status.profile else None,
            "error": told,
        }
    )
