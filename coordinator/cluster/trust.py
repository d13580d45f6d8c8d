"""Whom the coordinator trusts and how it identifies itself: by certificates and a list of members,
or, without an authority, by a secret that every daemon shares.
"""

from __future__ import annotations

import socket
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Self

import structlog

from coordinator.cluster.authority import FOLDER, Authority
from coordinator.cluster.invitations import VALID_FOR, Invitations
from coordinator.cluster.roster import Member, Roster
from coordinator.tasks.plan import DeviceId
from protos.channels import HOST, Caller
from protos.client import WorkerClient
from protos.credentials import Credentials
from protos.endpoint import Endpoint
from protos.errors import BadConfiguration, BadRequest, ImbrexError
from protos.files import write_atomically
from protos.identity import RENEWED_BEFORE_END, certificate_end, now_utc
from protos.invitation import Invitation

_RENEW_TIMEOUT_S = 10.0
_ID_FILE = "coordinator-id"

log = structlog.get_logger(__name__)


class Trust:
    """`caller` identifies the coordinator; `certified` is None if a shared secret is used."""

    def __init__(
        self,
        secret: str = "",
        certified: Certified | None = None,
        endpoint: Endpoint | None = None,
        name: str = "",
    ) -> None:
        """`name` is what the coordinator calls itself to workers (`Caller.coordinator`)."""
        credentials = certified.credentials if certified else None
        self.caller = Caller(
            HOST, secret, endpoint or Endpoint(), credentials, name, incarnation=uuid.uuid4().hex
        )
        self.certified = certified

    @classmethod
    def load(cls, state_dir: Path, secret: str = "", endpoint: Endpoint | None = None) -> Self:
        """Uses certificates if the state directory holds an authority.

        Raises:
            BadConfiguration: the authority is damaged, or others may read it.
        """
        authority = Authority.load(state_dir)
        certified = None if authority is None else Certified(state_dir, authority)
        return cls(secret, certified, endpoint, _own_name(state_dir))

    def members(self) -> frozenset[DeviceId] | None:
        """Devices that may take part; None if every daemon with the secret may."""
        return None if self.certified is None else self.certified.roster.ids()

    @property
    def generation(self) -> int:
        """Generation of the list of members; 0 if there is none."""
        return 0 if self.certified is None else self.certified.roster.generation

    def note_newer(self, generation: int) -> None:
        """Records that a worker has a newer list of members."""
        if self.certified is not None:
            self.certified.roster.note_newer(generation)

    def require_member(self, device: DeviceId, address: str) -> None:
        """Raises:
        BadConfiguration: the device was removed, or never enrolled here.
        """
        members = self.members()
        if members is not None and device not in members:
            raise BadConfiguration(
                cause=f"device {device} at {address} is not a member of the cluster",
                cure="If it should be, invite it (`imbrex cluster invite`) and start its worker "
                "with the token",
            )

    async def keep_valid(self, device: DeviceId, client: WorkerClient) -> None:
        """Renews certificates that are due: the coordinator's, and that of a connected member. A
        failure is retried for months before they expire.
        """
        if self.certified is None:
            return
        try:
            self.certified.renew_own_if_due()
            await self.certified.renew_if_due(device, client)
        except ImbrexError as error:
            log.warning("certificate not renewed", device=device, cause=error.cause)


class Certified:
    """What is needed if the cluster has an authority."""

    def __init__(self, state_dir: Path, authority: Authority) -> None:
        self.authority = authority
        self.roster = Roster(state_dir)
        self.invitations = Invitations(state_dir)
        path = state_dir / FOLDER / "coordinator.pem"
        kept = Credentials.load(path)
        ours = kept is not None and kept.identity.authority_pem == authority.certificate_pem
        # Renewed at the start, too: a coordinator may have been off for a year.
        if kept is None or not ours or kept.identity.is_due(now_utc()):
            kept = Credentials(path, authority.coordinator(now_utc()))
            kept.replace(kept.identity)
        self.credentials = kept

    def invite(self, address: str, valid_for: timedelta = VALID_FOR) -> Invitation:
        """A new invitation to enrol at `address`.

        Raises:
            Infeasible: too many are open.
        """
        secret = self.invitations.open(now_utc(), valid_for)
        return Invitation(address, self.authority.fingerprint, secret)

    def admit(self, invitation: str, request_pem: bytes, device: DeviceId, name: str) -> bytes:
        """Makes the holder of an invitation a member; returns its certificate as PEM.

        Raises:
            NotInvited: the invitation is not valid.
            BadRequest: the signing request is unusable, or the device is a member already.
        """
        now = now_utc()
        known = self.roster.members().get(device)
        if known is not None and known.expires > now:
            raise BadRequest(
                cause=f"device {device} is already a member, {known.name}",
                cure="If it lost its certificate, `imbrex cluster remove` it first; if it was "
                "copied from another device's card, delete the file id in its state directory",
            )
        # Signed first, so that an unusable request does not use up the invitation.
        certificate = self.authority.sign(request_pem, device, now)
        self.invitations.take(invitation, now)
        self.roster.admit(Member(device, name, now, certificate_end(certificate)))
        return certificate

    def renew_own_if_due(self) -> None:
        """Renews the coordinator's certificate long before it expires."""
        now = now_utc()
        if self.credentials.identity.is_due(now):
            self.credentials.replace(self.authority.coordinator(now))
            log.info("the coordinator's own certificate renewed")

    async def renew_if_due(self, device: DeviceId, client: WorkerClient) -> None:
        """Renews a connected member's certificate long before it expires."""
        member = self.roster.members().get(device)
        now = now_utc()
        if member is None or now < member.expires - RENEWED_BEFORE_END:
            return
        request = await client.signing_request(_RENEW_TIMEOUT_S)
        certificate = self.authority.sign(request, device, now)
        await client.certify(certificate, _RENEW_TIMEOUT_S)
        end = certificate_end(certificate)
        self.roster.admit(Member(device, member.name, member.since, end))
        log.info("certificate renewed", device=device, expires=f"{end:%Y-%m-%d}")


def _own_name(state_dir: Path) -> str:
    """An id that is kept in the state directory, and the name of this machine."""
    path = state_dir / _ID_FILE
    try:
        own = path.read_text().strip()
    except OSError:
        own = uuid.uuid4().hex[:12]
        state_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(path, own.encode())
    return f"{own[:64]} {socket.gethostname()}"
