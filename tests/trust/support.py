"""A cluster's authority, what it signs, and workers that have it."""

from datetime import timedelta
from unittest.mock import patch

import numpy as np

from coordinator.trust import authority as authority_module
from coordinator.trust.authority import Authority
from coordinator.trust.roster import Member
from coordinator.trust.trust import Certified, Trust
from models.tensors.boxes import Box
from protos.rpc.channels import Caller
from protos.rpc.worker_client import WorkerClient
from protos.trust.credentials import Credentials
from protos.trust.identity import (
    certified,
    device_name,
    keep_identity,
    new_key,
    now_utc,
    signing_request,
)
from protos.wire.facts import DeviceId
from tests.worker.support import in_process
from worker.tasks.actions import SendToPeer, TaskKey, TensorPiece
from worker.trust.certificate import IDENTITY_FILE

BORDER = Box.whole((1, 16, 12, 10))
DAY = timedelta(days=1)
KITCHEN, HALL, OFFICE = "a" * 16, "b" * 16, "c" * 16


def make_trust(state_dir) -> Trust:
    """The coordinator of a new cluster."""
    state_dir.mkdir(parents=True, exist_ok=True)
    Authority.make(state_dir, now_utc())
    return Trust.load(state_dir)


def identity(certified_: Certified, device, *, valid_for=365 * DAY):
    """What a device would have got by enrolling."""
    key = new_key()
    signer = certified_.authority
    with patch.object(authority_module, "VALID_FOR", valid_for):
        certificate = signer.sign(signing_request(key, device), DeviceId(device), now_utc())
    return certified(key, certificate, signer.certificate_pem, device_name(device))


def admit(certified_: Certified, device, *, expires=None):
    """Puts a device on the list of members."""
    end = expires or now_utc() + 365 * DAY
    certified_.roster.admit(Member(DeviceId(device), f"name-{device[:1]}", now_utc(), end))


def caller(certified_: Certified, device, folder, **how):
    """A device's own way to call others."""
    folder.mkdir(parents=True, exist_ok=True)
    credentials = Credentials(folder / "caller.pem", identity(certified_, device, **how))
    keep_identity(credentials.path, credentials.identity)
    return Caller(device, credentials=credentials)


def host(trust, running):
    """The coordinator's way to a worker."""
    return WorkerClient(running.address, trust.caller, running.id)


def neighbour(trust, running, device, folder):
    """A device's own way to a worker."""
    own = caller(trust.certified, device, folder / f"caller-{device[:1]}")
    return WorkerClient(running.address, own, running.id)


def give_identity(certified_: Certified, state_dir, device, **how):
    """Makes a state directory that of an enrolled worker."""
    state_dir.mkdir(parents=True)
    (state_dir / "id").write_text(f"{device}\n")
    keep_identity(state_dir / IDENTITY_FILE, identity(certified_, device, **how))


def member(certified_: Certified, state_dir, device, **settings):
    """A worker of the cluster, on this event loop."""
    give_identity(certified_, state_dir, device)
    admit(certified_, device)
    return in_process(state_dir, **settings)


def at(running):
    """Where a worker's neighbours send to."""
    return f"127.0.0.1:{running.data_port}"


def pieces_of(request):
    """A border for a neighbour's task."""
    key = TaskKey(request, 1, 1, 0)
    return SendToPeer(
        "", "", (TensorPiece(key, "y", BORDER, np.zeros(BORDER.shape, np.float32)),), key
    )
