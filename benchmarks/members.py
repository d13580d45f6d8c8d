"""A cluster with an authority whose workers are members already, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coordinator.trust.authority import Authority
from coordinator.trust.trust import Trust
from protos.rpc.channels import HOST, Caller
from protos.trust.identity import (
    Identity,
    device_name,
    keep_identity,
    new_key,
    now_utc,
    signing_request,
)
from protos.wire.facts import DeviceId
from worker.machine.device_identity import device_id
from worker.trust.certificate import IDENTITY_FILE


def make_members(coordinator: Path, workers: Sequence[Path]) -> Caller:
    """Makes an authority in a coordinator's state directory, and those of workers a member's each;
    how others may call them in the coordinator's name.
    """
    coordinator.mkdir(parents=True, exist_ok=True)
    Authority.make(coordinator, now_utc())
    trust = Trust.load(coordinator)
    certified = trust.certified
    assert certified is not None
    for state in workers:
        device, key = device_id(state), new_key()
        invitation = certified.invite("here")
        request = signing_request(key, device_name(device))
        certificate = certified.admit(invitation.secret, request, DeviceId(device), state.name)
        authority = certified.authority.certificate_pem
        keep_identity(state / IDENTITY_FILE, Identity(key, certificate, authority))
    return Caller(HOST, credentials=certified.credentials)
