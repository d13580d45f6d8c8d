"""What an examination is made of, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coordinator.answers import DeviceStatus
from coordinator.cluster.events import Source
from coordinator.cluster.others import Other
from coordinator.tasks.plan import DeviceId
from protos import imbrex_pb2 as pb
from protos.channels import is_loopback

# error: something does not work. warning: it works, but worse than it could. note: to be known.
Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; `device` is its name, empty for the cluster."""

    code: str
    severity: Severity
    device: str
    cause: str
    cure: str


def of_quarantine(status: DeviceStatus) -> Finding:
    """A device that is left out for its wrong results."""
    cure = "Run a memory test there; use its default clock rates; check its power supply"
    return Finding("quarantined", "error", status.name, status.reason, cure)


def of_no_exam(status: DeviceStatus, why: str) -> Finding:
    """A device whose results could not be compared with ours."""
    cause = f"it is not known whether it computes correctly: {why}"
    cure = "See the logs of its worker and of the coordinator, then try again"
    return Finding("not_examined", "warning", status.name, cause, cure)


@dataclass(frozen=True, slots=True)
class Patient:
    """A device that is connected, as it was examined.

    `address` is where the coordinator reached it. `ahead_s`: how far its clock is ahead of ours,
    give or take half of `round_trip_s`. `unreached`: the other devices that it doesn't reach, and
    why. `heard`: announced over mDNS, as far as we could hear. `coordinators`: others that it works
    for. `newer_members`: the generation of a list of members that it knows, if newer than ours.
    """

    id: DeviceId
    name: str
    address: str
    source: Source
    version: str
    condition: pb.Condition
    ahead_s: float = 0.0
    round_trip_s: float = 0.0
    unreached: Mapping[DeviceId, str] = field(default_factory=dict)
    heard: bool = True
    celsius: float = 0.0
    coordinators: tuple[Other, ...] = ()
    newer_members: int = 0

    @property
    def is_loopback(self) -> bool:
        """Whether only its own machine reaches it."""
        return is_loopback(self.address.rpartition(":")[0])

    @property
    def interface(self) -> pb.Interface | None:
        """Over which the coordinator reaches it."""
        ip = self.address.rpartition(":")[0].strip("[]")
        return next((i for i in self.condition.interfaces if ip in i.addresses), None)


@dataclass(frozen=True, slots=True)
class Absent:
    """An address that can't be used, and why. `code` is the problem's, if it was refused;
    `near`: it lies in a network that we are in.
    """

    address: str
    source: Source
    code: str
    reason: str
    cure: str
    near: bool = True


@dataclass(frozen=True, slots=True)
class Examined:
    """Everything that was found out. `listened`: whether mDNS is in use here; `others`: names of
    the other clusters that were heard; `strangers`: addresses that are announced and at which
    nobody has proved to be a worker, the oldest first.
    """

    version: str
    patients: tuple[Patient, ...]
    absent: tuple[Absent, ...] = ()
    unexamined: Mapping[str, str] = field(default_factory=dict)
    listened: bool = False
    others: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
