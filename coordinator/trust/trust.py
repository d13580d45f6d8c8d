"""Whom the coordinator trusts and how it identifies itself: by certificates and a list of members,
or, without an authority, by a secret that every daemon shares.
"""

import asyncio
import socket
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

import structlog

from coordinator.trust.authority import JOINED_FILE, Authority
from coordinator.trust.cluster_state import (
    COORDINATORS,
    DEVICES,
    FOLDER,
    GENERATION,
    INVITATIONS,
    ClusterState,
    Entries,
    read_entries,
)
from coordinator.trust.open_state import open_state
from coordinator.trust.roster import VALID_FOR, Member, Roster, admit, admit_signer, invite, use_up
from protos.daemon.files import write_atomically
from protos.errors import BadConfiguration, BadRequest, ImbrexError, Infeasible, Unavailable
from protos.rpc.channels import HOST, Caller
from protos.rpc.worker_client import WorkerClient
from protos.trust.credentials import Credentials
from protos.trust.identity import RENEWED_BEFORE_END, certificate_end, coordinator_name, now_utc
from protos.trust.invitation import Invitation
from protos.wire.endpoint import Endpoint
from protos.wire.facts import DeviceId

_RENEW_TIMEOUT_S = 10.0
ID_FILE = "coordinator-id"

log = structlog.get_logger(__name__)


class Trust:
    """`caller` identifies the coordinator; `certified` is None if a shared secret is used."""

    def __init__(
        self,
        secret: str = "",
        certified: "Certified | None" = None,
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
    def load(
        cls,
        state_dir: Path,
        secret: str = "",
        endpoint: Endpoint | None = None,
        state: ClusterState | None = None,
    ) -> Self:
        """Uses certificates if the state directory holds an authority.

        Raises:
            BadConfiguration: the authority is damaged, or others may read it.
        """
        authority, name = Authority.load(state_dir), own_name(state_dir)
        state = state or open_state(state_dir)
        certified = None if authority is None else Certified(state_dir, authority, state, name)
        return cls(secret, certified, endpoint, name)

    def members(self) -> frozenset[DeviceId] | None:
        """Devices that may take part; None if every daemon with the secret may."""
        return None if self.certified is None else self.certified.roster.ids()

    def coordinators(self) -> frozenset[DeviceId]:
        """Coordinators that may give orders; empty if any with a certificate may."""
        return frozenset() if self.certified is None else self.certified.roster.coordinator_ids()

    @property
    def is_revoked(self) -> bool:
        """Whether the cluster has removed this coordinator."""
        return self.certified is not None and self.certified.is_revoked

    @property
    def generation(self) -> int:
        """Generation of the list of members; 0 if there is none."""
        return 0 if self.certified is None else self.certified.roster.generation

    def note_newer(self, generation: int) -> None:
        """Records that a worker has a newer list of members."""
        if self.certified is None:
            return
        try:
            self.certified.roster.note_newer(generation)
        except ImbrexError as error:
            log.warning("the newer list of members is not recorded", cause=error.cause)

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
    """What is needed if the cluster has an authority. `name` is what the coordinator calls itself
    to workers: its id, a space and a display name.
    """

    def __init__(
        self, state_dir: Path, authority: Authority, state: ClusterState, name: str
    ) -> None:
        self.authority = authority
        self.state = state
        self.roster = Roster(state)
        self._state_dir = state_dir
        self._id, _, self._name = name.partition(" ")
        path = state_dir / FOLDER / "coordinator.pem"
        kept = Credentials.load(path)
        if authority.signs:
            ours = (
                kept is not None
                and kept.identity.authority_pem == authority.certificate_pem
                and coordinator_name(self._id) in kept.identity.names
            )
            # Renewed at the start, too: a coordinator may have been off for a year.
            if kept is None or not ours or kept.identity.is_due(now_utc()):
                kept = Credentials(path, authority.coordinator(now_utc(), self._id))
                kept.replace(kept.identity)
        elif kept is None:
            raise BadConfiguration(cause=f"{path} is missing", cure=_JOIN_AGAIN)
        self.credentials = kept

    def register(self, state: ClusterState) -> None:
        """Puts the coordinator that holds the authority's key on a state's list of coordinators."""
        identity = self.credentials.identity
        member = Member(DeviceId(self._id), self._name, now_utc(), identity.expires)
        if self.authority.signs and member.id not in state.entries(COORDINATORS):
            state.change(
                (COORDINATORS, GENERATION),
                lambda listed, noted: admit_signer(member, listed, noted),
            )

    @property
    def is_revoked(self) -> bool:
        """Whether this coordinator joined a cluster that has removed it."""
        listed = self.roster.coordinator_ids()
        return not self.authority.signs and DeviceId(self._id) not in listed

    def invite(
        self, address: str, valid_for: timedelta = VALID_FOR, *, coordinator: bool = False
    ) -> Invitation:
        """A new invitation to enrol at `address`, or where the authority's key is.

        Raises:
            Infeasible: too many are open.
            Unavailable: changes are impossible at present.
        """
        secret = self.state.change(
            (INVITATIONS,),
            lambda entries: invite(entries, now_utc(), valid_for, coordinator=coordinator),
        )
        return Invitation(self._signer() or address, self.authority.fingerprint, secret)

    def _signer(self) -> str:
        """Where the coordinator with the authority's key enrols devices; empty if it is this one.

        Raises:
            BadConfiguration: the file that names it is damaged.
        """
        if self.authority.signs:
            return ""
        path = self._state_dir / FOLDER / JOINED_FILE
        try:
            return str(read_entries(path)["signer"]["address"])
        except KeyError:
            raise BadConfiguration(cause=f"{path} names no address", cure=_JOIN_AGAIN) from None

    def admit(self, invitation: str, request_pem: bytes, device: DeviceId, name: str) -> bytes:
        """Makes the holder of an invitation a member; returns its certificate as PEM.

        Raises:
            NotInvited: the invitation is not valid.
            BadRequest: the signing request is unusable, or the device is a member already.
        """
        now = now_utc()
        # Signed first, so that an unusable request does not use up the invitation.
        certificate = self.authority.sign(request_pem, device, now)
        member = Member(device, name, now, certificate_end(certificate))

        def join(devices: Entries, noted: Entries, invitations: Entries) -> None:
            known = devices.get(device)
            if known is not None and datetime.fromisoformat(known["expires"]) > now:
                raise BadRequest(
                    cause=f"device {device} is already a member, {known['name']}",
                    cure="If it lost its certificate, `imbrex cluster remove` it first; if it was "
                    "copied from another device's card, delete the file id in its state directory",
                )
            use_up(invitations, invitation, now)
            admit(member, devices, noted)

        self.state.change((DEVICES, GENERATION, INVITATIONS), join)
        return certificate

    def admit_coordinator(
        self, invitation: str, request_pem: bytes, coordinator: DeviceId, name: str
    ) -> bytes:
        """Makes the holder of a coordinator's invitation a coordinator; returns its certificate as
        PEM.

        Raises:
            NotInvited: the invitation is not valid.
            BadRequest: the signing request is unusable, or the coordinator is one already.
            Infeasible: this coordinator keeps the cluster's state for itself.
        """
        if not self.state.url:
            raise Infeasible(
                cause="the coordinator has the cluster's state in its files, which another one "
                "cannot follow",
                cure="Move it to a store first (`imbrex cluster move-state nats://HOST:4222`)",
            )
        now = now_utc()
        certificate = self.authority.sign_coordinator(request_pem, coordinator, now)
        member = Member(coordinator, name, now, certificate_end(certificate))

        def join(coordinators: Entries, noted: Entries, invitations: Entries) -> None:
            if coordinator in coordinators:
                raise BadRequest(
                    cause=f"coordinator {coordinator} is already one of the cluster's",
                    cure="`imbrex cluster remove` it first, or start it without --join",
                )
            use_up(invitations, invitation, now, coordinator=True)
            admit(member, coordinators, noted)

        self.state.change((COORDINATORS, GENERATION, INVITATIONS), join)
        return certificate

    def renew_own_if_due(self) -> None:
        """Renews the coordinator's certificate long before it expires."""
        now = now_utc()
        if not self.credentials.identity.is_due(now):
            return
        if not self.authority.signs:
            raise Unavailable(
                cause=f"the certificate ends on {self.credentials.identity.expires:%Y-%m-%d}",
                cure=_JOIN_AGAIN,
            )
        self.credentials.replace(self.authority.coordinator(now, self._id))
        log.info("the coordinator's own certificate renewed")

    async def renew_if_due(self, device: DeviceId, client: WorkerClient) -> None:
        """Renews a connected member's certificate long before it expires."""
        member = self.roster.members().get(device)
        now = now_utc()
        due = member is not None and now >= member.expires - RENEWED_BEFORE_END
        if member is None or not due or not self.authority.signs:
            return
        request = await client.signing_request(_RENEW_TIMEOUT_S)
        certificate = self.authority.sign(request, device, now)
        await client.certify(certificate, _RENEW_TIMEOUT_S)
        end = certificate_end(certificate)
        renewed = Member(device, member.name, member.since, end)
        await asyncio.to_thread(self.roster.admit, renewed)
        log.info("certificate renewed", device=device, expires=f"{end:%Y-%m-%d}")


def own_name(state_dir: Path) -> str:
    """An id that is kept in the state directory, and the name of this machine."""
    path = state_dir / ID_FILE
    try:
        own = path.read_text().strip()
    except OSError:
        own = uuid.uuid4().hex[:12]
        state_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(path, own.encode())
    return f"{own[:64]} {socket.gethostname()}"


_JOIN_AGAIN = (
    "Remove this coordinator (`imbrex cluster remove`), and join with a new state directory and a "
    "new token (`imbrex cluster invite --coordinator`)"
)
