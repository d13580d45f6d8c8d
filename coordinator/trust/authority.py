"""The cluster's own certificate authority, created once, which signs the cluster's certificates.

Whoever can read its key can make members. One coordinator holds it; those that joined have the
authority's certificate only.
"""

import ipaddress
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coordinator.trust.cluster_state import FOLDER
from protos.daemon.files import give_to_owner_of, write_atomically
from protos.errors import BadConfiguration, BadRequest
from protos.trust.identity import (
    COORDINATOR_NAME,
    VALID_FOR,
    WORKER_NAME,
    Identity,
    coordinator_name,
    device_name,
    fingerprint,
    new_key,
    private_key,
    require_private,
)
from protos.wire.facts import DeviceId

_KEY_FILE = "authority.key.pem"
_CERTIFICATE_FILE = "authority.pem"
# At a coordinator that joined: it has no key, and never had one.
JOINED_FILE = "joined.json"
# Outside the folder: shows that there was an authority.
_MARK = "cluster.authority"

# A Raspberry Pi without a battery starts with the time of its last shutdown, or of its system
# image. No system that imbrex supports is older than Debian 12, so no certificate is "not valid
# yet".
NOT_BEFORE = datetime(2023, 6, 10, tzinfo=UTC)
# A cluster is made again long before this ends; devices' certificates renew automatically.
_AUTHORITY_VALID_FOR = timedelta(days=20 * 365)
# Removal, not expiry, ends the rights of what only a person could renew.
_NOT_RENEWED_FOR = timedelta(days=10 * 365)
# Daemons are both servers and clients.
_MEMBERS = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
# Domain of the names in members' certificates.
_RESERVED = ".imbrex.internal"
_HOST_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")


class Authority:
    """Signs certificates; `certificate_pem` is what all members trust. `signs` is false at a
    coordinator that joined: it has no key, and methods that sign raise BadConfiguration.
    """

    def __init__(self, key_pem: bytes, certificate_pem: bytes) -> None:
        """`key_pem` is empty at a coordinator that joined."""
        self._own_key = private_key(key_pem) if key_pem else None
        self.certificate_pem = certificate_pem
        self._certificate = _load(certificate_pem)

    @property
    def signs(self) -> bool:
        """Whether its key is here."""
        return self._own_key is not None

    @property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        if self._own_key is None:
            raise BadConfiguration(
                cause="this coordinator joined the cluster, and does not hold its authority's key",
                cure="Do this on the coordinator on which the cluster was created",
            )
        return self._own_key

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its certificate, in hexadecimal."""
        return fingerprint(self.certificate_pem)

    @classmethod
    def make(cls, state_dir: Path, now: datetime) -> Self:
        """A new authority, kept in the coordinator's state directory.

        Raises:
            BadConfiguration: there is one already, or the directory cannot be written.
        """
        if _ever_had_authority(state_dir):
            raise BadConfiguration(
                cause=f"{state_dir} holds a cluster's authority, or did before", cure=_RESTORE
            )
        key_pem = new_key()
        key = private_key(key_pem)
        # A random name: the authorities of two clusters are never confused.
        name = f"imbrex cluster {secrets.token_hex(4)}"
        public = key.public_key()
        builder = (
            _builder(name, _name(name), public, now + _AUTHORITY_VALID_FOR)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )
        certificate_pem = _pem(builder.sign(key, hashes.SHA256()))
        _write(state_dir, {_CERTIFICATE_FILE: certificate_pem, _KEY_FILE: key_pem})
        return cls(key_pem, certificate_pem)

    @classmethod
    def replace(cls, state_dir: Path, now: datetime) -> tuple[Self, Path | None]:
        """A new authority in place of the present or former one, and where the former one's folder
        is now.

        Raises:
            BadConfiguration: the directory cannot be written.
        """
        folder, aside = state_dir / FOLDER, None
        try:
            if folder.exists():
                aside = state_dir / f"{FOLDER}.{now:%Y%m%d-%H%M%S}"
                folder.rename(aside)
            (state_dir / _MARK).unlink(missing_ok=True)
        except OSError as error:
            raise BadConfiguration(
                cause=f"{folder} cannot be moved: {error.strerror}",
                cure="Run this as the coordinator's user, or as root",
            ) from error
        return cls.make(state_dir, now), aside

    @classmethod
    def load(cls, state_dir: Path) -> Self | None:
        """The authority in the coordinator's state directory; None if there never was one.

        Raises:
            BadConfiguration: it is damaged or missing, or others may read its key.
        """
        if not _ever_had_authority(state_dir):
            return None
        key, certificate = (state_dir / FOLDER / name for name in (_KEY_FILE, _CERTIFICATE_FILE))
        if (state_dir / FOLDER / JOINED_FILE).exists() and not key.exists():
            return cls(b"", _read(certificate, _load))
        require_private(key)
        pems = [_read(path, check) for path, check in ((key, private_key), (certificate, _load))]
        found = cls(*pems)
        if found._key.public_key() != found._certificate.public_key():
            raise _unusable(key, f"it is not the key of {certificate}")
        if not (state_dir / _MARK).exists():
            with suppress(OSError):  # an authority from a version without the mark, on a full disk
                write_atomically(state_dir / _MARK, found.fingerprint.encode())
        return found

    @classmethod
    def joined(
        cls, state_dir: Path, certificate_pem: bytes, noted: Mapping[str, Mapping[str, str]]
    ) -> Self:
        """Keeps the certificate of the authority of a cluster that this coordinator joins, and what
        is `noted` about that.

        Raises:
            BadConfiguration: the directory cannot be written.
        """
        joined = json.dumps(noted).encode() + b"\n"
        _write(state_dir, {JOINED_FILE: joined, _CERTIFICATE_FILE: certificate_pem})
        return cls(b"", certificate_pem)

    def sign(self, request_pem: bytes, device: DeviceId, now: datetime) -> bytes:
        """Signs a worker's request; its certificate as PEM. Names in the request are ignored.

        Raises:
            BadRequest: it is not a signing request, or its key is of another type.
        """
        return self._sign(request_pem, _dns(WORKER_NAME, device_name(device)), now)

    def sign_coordinator(self, request_pem: bytes, coordinator: str, now: datetime) -> bytes:
        """The same for the request of another coordinator, whose certificate nobody renews."""
        names = _dns(COORDINATOR_NAME, coordinator_name(coordinator))
        return self._sign(request_pem, names, now, _NOT_RENEWED_FOR)

    def _sign(
        self,
        request_pem: bytes,
        names: Sequence[x509.GeneralName],
        now: datetime,
        valid_for: timedelta | None = None,
    ) -> bytes:
        try:
            request = x509.load_pem_x509_csr(request_pem)
            valid = request.is_signature_valid
        except ValueError as error:
            raise BadRequest(cause="the signing request cannot be read", cure=_SAME) from error
        key = request.public_key()
        if not valid or not isinstance(key, ec.EllipticCurvePublicKey):
            raise BadRequest(cause="the signing request is not signed by an EC key", cure=_SAME)
        return self._certify(key, names, _MEMBERS, now, valid_for)

    def coordinator(self, now: datetime, own_id: str = "") -> Identity:
        """A new identity for this coordinator itself."""
        key_pem = new_key()
        public = private_key(key_pem).public_key()
        own = (coordinator_name(own_id),) if own_id else ()
        certificate = self._certify(public, _dns(COORDINATOR_NAME, *own), _MEMBERS, now)
        return Identity(key_pem, certificate, self.certificate_pem)

    def for_clients(self, names: Sequence[str], now: datetime) -> tuple[bytes, bytes]:
        """A key and a certificate, both PEM, for a server that clients reach at these names and
        addresses. Daemons of the cluster do not accept it from each other.

        Raises:
            BadConfiguration: one of them is reserved for members, or not a name.
        """
        key_pem = new_key()
        public = private_key(key_pem).public_key()
        answers = [ExtendedKeyUsageOID.SERVER_AUTH]
        return key_pem, self._certify(public, list(map(_client_name, names)), answers, now)

    def for_store(self, names: Sequence[str], now: datetime) -> Identity:
        """An identity for a server of the store of the cluster's state at these names and
        addresses, which is also a client of the others. Nobody renews it.

        Raises:
            BadConfiguration: one of them is reserved for members, or not a name.
        """
        key_pem = new_key()
        public = private_key(key_pem).public_key()
        shown = list(map(_client_name, names))
        certificate = self._certify(public, shown, _MEMBERS, now, _NOT_RENEWED_FOR)
        return Identity(key_pem, certificate, self.certificate_pem)

    def _certify(
        self,
        key: ec.EllipticCurvePublicKey,
        names: Sequence[x509.GeneralName],
        usage: Sequence[x509.ObjectIdentifier],
        now: datetime,
        valid_for: timedelta | None = None,
    ) -> bytes:
        issuer_key = self._key.public_key()
        end = now + (valid_for or VALID_FOR)
        builder = (
            _builder(str(names[-1].value), self._certificate.subject, key, end)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), False)
        )
        return _pem(builder.sign(self._key, hashes.SHA256()))


def _dns(*names: str) -> list[x509.GeneralName]:
    return [x509.DNSName(name) for name in names]


def _client_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if f".{name.lower()}".endswith(_RESERVED) or not _HOST_NAME.fullmatch(name):
        raise BadConfiguration(
            cause=f"{name!r} cannot be a name of this device in its certificate",
            cure="Correct tls_names, or the host's name",
        )
    return x509.DNSName(name)


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOT_BEFORE)
        .not_valid_after(end)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _load(certificate_pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate_pem)


def _ever_had_authority(state_dir: Path) -> bool:
    """Whether there is an authority or a trace of one. Without this check, a coordinator whose
    files are damaged would speak plain text to anybody.
    """
    folder = state_dir / FOLDER
    return (state_dir / _MARK).exists() or (folder.is_dir() and any(folder.iterdir()))


def _read(path: Path, check: Callable[[bytes], object]) -> bytes:
    try:
        data = path.read_bytes()
        check(data)
    except FileNotFoundError:
        raise _unusable(path, "it is missing") from None
    except OSError as error:
        raise _unusable(path, str(error.strerror)) from error
    except ValueError as error:
        raise _unusable(path, str(error)) from error
    return data


def _unusable(path: Path, why: str) -> BadConfiguration:
    return BadConfiguration(
        cause=f"the cluster's authority cannot be used: {path}: {why}", cure=_RESTORE
    )


_RESTORE = (
    "Restore a backup (`imbrex cluster restore FILE`), or make a new authority and enrol every "
    "device again (`imbrex cluster init --replace`)"
)


def _write(state_dir: Path, files: Mapping[str, bytes]) -> None:
    """Writes the authority's files to a folder that others cannot read, and the mark that there was
    one.

    Raises:
        BadConfiguration: the folder cannot be written.
    """
    folder = state_dir / FOLDER
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        if os.geteuid() == 0:
            give_to_owner_of(state_dir, folder)
        for name, data in files.items():
            write_atomically(folder / name, data)
        write_atomically(state_dir / _MARK, fingerprint(files[_CERTIFICATE_FILE]).encode())
    except OSError as error:
        raise BadConfiguration(
            cause=f"{folder} cannot be written: {error.strerror}",
            cure="Run this as the coordinator's user, or as root",
        ) from error


_SAME = "Run the same version of imbrex on every device"
