"""A daemon's identity in its cluster: a key, a certificate, and the authority that signed it.

A certificate's DNS names say what its holder is, `coordinator.imbrex.internal` or
`worker.imbrex.internal`, and which one, by its id before that name. Devices are dialled at their
present address; only the names are checked (RFC 9525, and `.internal` is reserved for private use).
"""

import hashlib
import os
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from protos.daemon.files import write_atomically
from protos.errors import BadConfiguration, PeerViolation

COORDINATOR_NAME = "coordinator.imbrex.internal"
WORKER_NAME = "worker.imbrex.internal"

# Long enough for a device that is switched off for half a year; removal does not wait for expiry.
VALID_FOR = timedelta(days=365)
RENEWED_BEFORE_END = VALID_FOR / 3

_OTHERS_MAY_READ = stat.S_IRWXG | stat.S_IRWXO


def device_name(device: str) -> str:
    """The name in a device's certificate."""
    return f"{device}.{WORKER_NAME}"


def coordinator_name(coordinator: str) -> str:
    """The name in a coordinator's certificate."""
    return f"{coordinator}.{COORDINATOR_NAME}"


def device_of(names: tuple[str, ...]) -> str:
    """The device id among a certificate's names; empty if it is not a worker's."""
    return _before(WORKER_NAME, names)


def coordinator_of(names: tuple[str, ...]) -> str:
    """The coordinator's id among a certificate's names; empty if there is none."""
    return _before(COORDINATOR_NAME, names)


def _before(kind: str, names: tuple[str, ...]) -> str:
    suffix = f".{kind}"
    return next((name.removesuffix(suffix) for name in names if name.endswith(suffix)), "")


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key, its certificate, and the certificate of the cluster's authority, as PEM."""

    key_pem: bytes = field(repr=False)
    certificate_pem: bytes
    authority_pem: bytes

    @property
    def names(self) -> tuple[str, ...]:
        """The DNS names in the certificate."""
        return names_in(self.certificate_pem)

    @property
    def expires(self) -> datetime:
        """When the certificate ends."""
        return certificate_end(self.certificate_pem)

    def is_due(self, now: datetime) -> bool:
        """Whether it is time for a new certificate."""
        return now > self.expires - RENEWED_BEFORE_END


def new_key() -> bytes:
    """A private key, as PEM."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def signing_request(key_pem: bytes, name: str) -> bytes:
    """A certificate signing request, as PEM; `name` is for display, the authority decides the
    rest.
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64] or "imbrex")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return request.sign(private_key(key_pem), hashes.SHA256()).public_bytes(
        serialization.Encoding.PEM
    )


def private_key(key_pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Reads one of our private keys.

    Raises:
        ValueError: it is not one.
    """
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError) as error:
        raise ValueError("the private key cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the private key is of another kind")
    return key


def names_in(certificate_pem: bytes) -> tuple[str, ...]:
    """The DNS names of a certificate; none where it has none."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    return tuple(found.value.get_values_for_type(x509.DNSName))


def certificate_end(certificate_pem: bytes) -> datetime:
    """When a certificate ends."""
    return x509.load_pem_x509_certificate(certificate_pem).not_valid_after_utc


def validity_problem(certificate: x509.Certificate, now: datetime) -> str:
    """What is wrong with a certificate at the time `now`; empty if it is valid."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if begin <= now <= end:
        return ""
    state = "has expired" if now > end else "is not valid yet"
    return (
        f"{state}: it is valid from {shown(begin)} to {shown(end)}, and the clock of this device "
        f"says {shown(now)}"
    )


def shown(moment: datetime) -> str:
    """A moment as text."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def fingerprint(certificate_pem: bytes) -> str:
    """SHA-256 of a certificate, in hexadecimal.

    Raises:
        PeerViolation: it is not a certificate.
    """
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as error:
        raise PeerViolation(cause="a certificate cannot be read") from error
    return certificate.fingerprint(hashes.SHA256()).hex()


def certified(key_pem: bytes, certificate_pem: bytes, authority_pem: bytes, name: str) -> Identity:
    """The identity that a new certificate makes.

    Raises:
        PeerViolation: it is for another key or name, or another authority's.
    """
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority_pem))
    except (ValueError, TypeError, InvalidSignature) as error:
        raise PeerViolation(
            cause="the certificate that came is not signed by the authority"
        ) from error
    same_key = certificate.public_key() == private_key(key_pem).public_key()
    if not same_key or name not in names_in(certificate_pem):
        raise PeerViolation(cause=f"the certificate that came is not for {name}")
    return Identity(key_pem, certificate_pem, authority_pem)


def secret_hash(secret: str) -> str:
    """The hash that is stored to recognise a secret. No salt, no stretching: our secrets have 192
    random bits.
    """
    return hashlib.sha256(secret.encode()).hexdigest()


# ---------------------------------------------------------------- the file


def keep_identity(path: Path, identity: Identity) -> None:
    """Writes key and certificates as one file, so that no crash leaves a key without its
    certificate; only its owner may read it.
    """
    data = identity.key_pem + identity.certificate_pem + identity.authority_pem
    write_atomically(path, data)


def read_identity(path: Path) -> Identity | None:
    """The identity in a file; None if the file does not exist.

    Raises:
        BadConfiguration: the file is damaged, or others may read it.
    """
    require_private(path)
    try:
        data = path.read_bytes()
        end = b"-----END PRIVATE KEY-----\n"
        key, found, rest = data.partition(end)
        certificates = x509.load_pem_x509_certificates(rest) if found else []
        if len(certificates) != 2:
            raise ValueError("it does not hold a key and two certificates")
        private_key(key + end)
        own, authority = (
            certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates
        )
        return Identity(key + end, own, authority)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadConfiguration(cause=f"{path} cannot be used: {error}", cure=_ENROL) from error


def require_private(path: Path) -> None:
    """Refuses a file that users other than its owner may read.

    Raises:
        BadConfiguration: they may.
    """
    if not path.exists():
        return
    if os.stat(path).st_mode & _OTHERS_MAY_READ:
        raise BadConfiguration(
            cause=f"{path} holds a private key, and others may read it",
            cure=f"chmod 600 {path}; if somebody has read it, remove the device and enrol it again",
        )


def now_utc() -> datetime:
    """The wall clock, which certificates go by."""
    return datetime.now(UTC)


SET_CLOCKS = (
    "Set the clocks of both devices (`timedatectl`; a Raspberry Pi has no battery and needs "
    "NTP). If they are, enrol that device again (`imbrex cluster invite`)"
)
_ENROL = "Remove the file, and enrol this device again (`imbrex cluster invite`)"
