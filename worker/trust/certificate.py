"""A worker's part in its cluster's trust: joining with a token, and renewing its certificate."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import structlog
from cryptography import x509

from protos.daemon.files import write_atomically
from protos.errors import BadRequest
from protos.rpc.channels import Caller
from protos.rpc.enrolment import enrol
from protos.rpc.gates import CertificateGate, Gate
from protos.trust.credentials import Credentials
from protos.trust.identity import (
    SET_CLOCKS,
    certified,
    device_name,
    fingerprint,
    keep_identity,
    new_key,
    now_utc,
    secret_hash,
    signing_request,
    validity_problem,
)
from protos.trust.invitation import Invitation

# NTP sets the clock within minutes of the start, and a certificate expires once a year.
WATCH_CLOCK_S = 600.0
IDENTITY_FILE = "identity.pem"
# The hash of the last token: the same token in the settings is not used again.
_JOINED_FILE = "joined"
# The authority's fingerprint, the generation of the newest list of its members, and the ids of its
# coordinators on that list.
_GENERATION_FILE = "members"

_log = structlog.get_logger()


async def credentials_in(state_dir: Path, token: str, device: str, name: str) -> Credentials | None:
    """This worker's credentials: stored ones, or new ones for a new token; None if it has neither.

    Raises:
        BadRequest: it is not a token.
        BadConfiguration: the stored file is damaged, or another cluster answers.
        Unavailable: no answer.
    """
    path, joined = state_dir / IDENTITY_FILE, state_dir / _JOINED_FILE
    credentials = Credentials.load(path)
    if not token:
        return credentials
    invitation = Invitation.parse(token)
    used = secret_hash(invitation.secret).encode()
    if credentials is not None and joined.exists() and joined.read_bytes() == used:
        return credentials
    identity = await enrol(invitation, device, name)
    keep_identity(path, identity)
    write_atomically(joined, used)
    _log.info("enrolled", coordinator=invitation.address, expires=f"{identity.expires:%Y-%m-%d}")
    return Credentials(path, identity)


async def watch_clock(credentials: Credentials) -> None:
    """Logs a warning if this device's certificate is not valid by its own clock: connections in
    either direction are then refused without a reason.
    """
    while True:
        certificate = x509.load_pem_x509_certificate(credentials.identity.certificate_pem)
        if problem := validity_problem(certificate, now_utc()):
            _log.error("this device's certificate cannot be used", cause=problem, cure=SET_CLOCKS)
        await asyncio.sleep(WATCH_CLOCK_S)


class Streams(Protocol):
    """An owner of streams with neighbours."""

    def keep(self, members: Collection[str]) -> None:
        """Sets the members; ends the streams of all other devices."""
        ...


class TrustUpdates:
    """Passes the list of members to the gate and to the owners of `streams` with neighbours, and
    renews the certificate when the host asks. `state_dir` keeps the generation of the newest list.
    """

    def __init__(
        self, caller: Caller, gate: Gate, streams: Sequence[Streams], state_dir: Path
    ) -> None:
        self._caller = caller
        self._path = state_dir / _GENERATION_FILE
        self._generation, self._coordinators = self._kept()
        self._refused = 0
        self._gate = gate
        if isinstance(gate, CertificateGate):
            gate.allow((), self._coordinators)
        self._streams = streams
        self._next_key: bytes | None = None

    def learn(
        self, members: Iterable[str], generation: int, coordinators: Iterable[str] = ()
    ) -> int:
        """Takes the host's lists of members and coordinators, if it sends them. Lists older than
        the newest so far are ignored: they may name some that were removed since. Returns the
        newest generation (0: no list so far).
        """
        ids, hosts = frozenset(members), frozenset(coordinators)
        if ids and isinstance(self._gate, CertificateGate) and self._is_taken(generation, hosts):
            self._gate.allow(ids, hosts)
            for owner in self._streams:
                owner.keep(ids)
        return self._generation

    def _is_taken(self, generation: int, coordinators: frozenset[str]) -> bool:
        if 0 < generation < self._generation:
            if generation != self._refused:
                _log.warning(
                    "an older list of members is ignored",
                    generation=generation,
                    newest=self._generation,
                    cause="a copy of the coordinator is running, or a backup of it was restored",
                    cure="Stop the copy; after a backup, `imbrex cluster confirm` there",
                )
            self._refused = generation
            return False
        if (generation, coordinators) != (self._generation, self._coordinators) and generation:
            self._generation, self._coordinators = generation, coordinators
            content = [self._authority(), str(generation), *sorted(coordinators)]
            try:
                write_atomically(self._path, " ".join(content).encode())
            except OSError as error:
                _log.warning(
                    "the generation of the list of members cannot be stored", cause=str(error)
                )
        return True

    def _kept(self) -> tuple[int, frozenset[str]]:
        """Generation and coordinators of the newest list of this worker's present authority."""
        try:
            authority, generation, *coordinators = self._path.read_text().split()
            if authority == self._authority():
                return int(generation), frozenset(coordinators)
        except (OSError, ValueError):
            pass
        return 0, frozenset()

    def _authority(self) -> str:
        """The fingerprint of this worker's present authority."""
        credentials = self._caller.credentials
        return fingerprint(credentials.identity.authority_pem) if credentials else ""

    def signing_request(self) -> bytes:
        """Creates a new key and a signing request for it.

        Raises:
            BadRequest: this worker has no certificate.
        """
        self._credentials()
        self._next_key = new_key()
        return signing_request(self._next_key, self._caller.sender)

    def certify(self, certificate_pem: bytes) -> None:
        """Installs the certificate for the last signing request.

        Raises:
            BadRequest: none was requested.
            PeerViolation: it is from another authority, or for another key or device.
        """
        credentials = self._credentials()
        if self._next_key is None:
            raise BadRequest(cause="no certificate was requested", cure="Request one first")
        own, device = credentials.identity, self._caller.sender
        identity = certified(
            self._next_key, certificate_pem, own.authority_pem, device_name(device)
        )
        credentials.replace(identity)
        self._next_key = None
        _log.info("certificate renewed", expires=f"{identity.expires:%Y-%m-%d}")

    def _credentials(self) -> Credentials:
        if self._caller.credentials is None:
            raise BadRequest(
                cause="this worker has no certificate to renew",
                cure="Enrol it (`imbrex cluster invite`)",
            )
        return self._caller.credentials
