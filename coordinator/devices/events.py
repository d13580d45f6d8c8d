"""Membership's events (what happens to peers) and actions (what is to be done)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protos.wire.facts import DeviceId

AddressSource = Literal["mdns", "static", "host"]
ProblemCode = Literal[
    "no_answer", "denied", "duplicate_id", "too_many_devices", "too_many_addresses"
]


# ------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class Sighted:
    """A worker may be listening at `address` (`host:port`)."""

    address: str
    source: AddressSource


@dataclass(frozen=True, slots=True)
class Greeted:
    """The connection to `address` is open, and this device answered."""

    address: str
    device_id: DeviceId
    boot_id: str


@dataclass(frozen=True, slots=True)
class Denied:
    """The peer at `address` cannot be used until somebody fixes the problem (version, secret)."""

    address: str
    cause: str
    cure: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """The connection to `address` failed or ended."""

    address: str
    cause: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Nobody will listen at `address` again: the host worker restarted, or the list was edited."""

    address: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: peers that are due are tried again."""


Event = Sighted | Greeted | Denied | Dropped | Withdrawn | Tick


# ------------------------------------------------------------------ actions


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection; exactly one of Greeted, Denied and Dropped must follow."""

    address: str


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection to `address`; its further events are ignored."""

    address: str


@dataclass(frozen=True, slots=True)
class Join:
    """The device can be used through the connection to `address`."""

    device_id: DeviceId
    address: str


@dataclass(frozen=True, slots=True)
class Leave:
    """The device can no longer be used."""

    device_id: DeviceId
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class AddressProblem:
    """Something that a person should know; reported once, not at every attempt."""

    address: str
    code: ProblemCode
    cause: str
    cure: str


Action = Connect | Close | Join | Leave | AddressProblem
