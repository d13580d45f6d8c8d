"""What proves an identity on connections: TLS in both directions, renewed while they run."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

import grpc

from protos.trust.ciphers import PRIORITIZE_CHACHA20
from protos.trust.identity import Identity, keep_identity, read_identity

T = TypeVar("T")
Made = TypeVar("Made")

# What sockets of the data plane say in their handshake.
DATA_PROTOCOL = "imbrex-data"


class Credentials:
    """The identity in force. After `replace` new connections use the new one; those that stand
    go on, on either side.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self._path = path
        self._identity = identity

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """The identity that a file holds; None without one.

        Raises:
            BadConfiguration: the file is damaged, or others may read it.
        """
        identity = read_identity(path)
        return None if identity is None else cls(path, identity)

    @property
    def path(self) -> Path:
        """The file with key and certificates."""
        return self._path

    @property
    def identity(self) -> Identity:
        """The one in force."""
        return self._identity

    def replace(self, identity: Identity) -> None:
        """Keeps a new identity and puts it in force."""
        keep_identity(self._path, identity)
        self._identity = identity

    def of_channel(self) -> grpc.ChannelCredentials:
        """For a connection that we open: both sides show certificates of our authority."""
        own = self._identity
        return grpc.ssl_channel_credentials(own.authority_pem, own.key_pem, own.certificate_pem)

    def tls_client(self) -> ssl.SSLContext:
        """For a plain socket that we open: both sides show certificates of our authority, and the
        other one is who it is called.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return self._context(context)

    def tls_server(self) -> ssl.SSLContext:
        """For a plain socket that was accepted. No session is resumed: nobody reads what a sender
        would be sent for that.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0
        context.options |= PRIORITIZE_CHACHA20
        return self._context(context)

    def _context(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols([DATA_PROTOCOL])
        context.load_verify_locations(cadata=self._identity.authority_pem.decode())
        context.load_cert_chain(self._path)
        return context

    def of_server(self, *, strangers: bool = False) -> grpc.ServerCredentials:
        """For a server: callers show certificates of our authority, unless `strangers` may call
        who have none yet.
        """
        return server_credentials(
            lambda: self._identity, _configuration, require_client_authentication=not strangers
        )


def server_credentials(
    current: Callable[[], T],
    configured: Callable[[T], grpc.ServerCertificateConfiguration],
    *,
    require_client_authentication: bool,
) -> grpc.ServerCredentials:
    """For a server that shows the certificate of what `current` returns, also when that changes."""
    return grpc.dynamic_ssl_server_credentials(  # type: ignore[no-any-return, unused-ignore]
        configured(current()),
        on_change(current, configured),  # type: ignore[arg-type, unused-ignore]
        require_client_authentication=require_client_authentication,
    )


def on_change(current: Callable[[], T], made: Callable[[T], Made]) -> Callable[[], Made | None]:
    """What gRPC asks at every handshake: `made` of what is current, None where it made that before.

    Any answer but None has gRPC free the old certificate, which another handshake may be using at
    that moment (grpc/grpc#36693): a server that always answers dies of a few hundred connections.
    """
    before = current()

    def changed() -> Made | None:
        nonlocal before
        now = current()
        if now is before:
            return None
        before = now
        return made(now)

    return changed


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(identity.key_pem, identity.certificate_pem)], root_certificates=identity.authority_pem
    )
