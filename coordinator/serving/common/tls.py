"""The certificate for clients over HTTP and gRPC: from files, or signed by the cluster's authority.
It can change while the daemon runs; existing connections are not affected.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
from codecs import BOM_UTF8
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc
import psutil  # type: ignore[import-untyped, unused-ignore]
import structlog

from coordinator.settings import CoordinatorSettings
from coordinator.trust.authority import Authority
from protos.errors import BadConfiguration, ImbrexError
from protos.trust.ciphers import PRIORITIZE_CHACHA20
from protos.trust.credentials import server_credentials
from protos.trust.identity import RENEWED_BEFORE_END, certificate_end, now_utc

# Renewed files, and new addresses of this device, are noticed within a minute.
LOOK_S = 60.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pair:
    """A private key and its certificate chain, as PEM."""

    key_pem: bytes = field(repr=False)
    certificate_pem: bytes


class WebTls:
    """`context` is for HTTP, `of_grpc` for gRPC; `source` has the pair that should be in use."""

    def __init__(self, source: _Files | _Signed) -> None:
        self._source = source
        self._pair = source.read()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self.context.options |= PRIORITIZE_CHACHA20
        _load(self.context, self._pair)

    @classmethod
    def of(cls, settings: CoordinatorSettings) -> Self | None:
        """The certificate that the settings ask for; None if clients do not use TLS.

        Raises:
            BadConfiguration: the files or the authority cannot be used.
        """
        if settings.tls_cert is not None and settings.tls_key is not None:
            return cls(_Files(settings.tls_cert, settings.tls_key))
        return cls(_Signed(settings)) if settings.tls else None

    def refresh(self) -> None:
        """Reads the pair, and uses it if it has changed.

        Raises:
            BadConfiguration: it cannot be used; the old one stays in use.
        """
        pair = self._source.read()
        if pair != self._pair:
            # Tried in another context first: a context that refuses a pair has half of it.
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
            _load(self.context, pair)
            self._pair = pair
            log.info("certificate for clients renewed")

    async def keep(self) -> None:
        """Looks for a new pair, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await asyncio.to_thread(self.refresh)
            except ImbrexError as error:
                log.warning("certificate for clients not renewed", cause=error.cause)

    def of_grpc(self) -> grpc.ServerCredentials:
        """For a gRPC server."""
        return server_credentials(
            lambda: self._pair, _configuration, require_client_authentication=False
        )


def _configuration(pair: Pair) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pair.key_pem, pair.certificate_pem)])


@dataclass(frozen=True, slots=True)
class _Files:
    """A pair that somebody else makes."""

    certificate: Path
    key: Path

    def read(self) -> Pair:
        """The pair as the files have it now.

        Raises:
            BadConfiguration: they cannot be read, or everybody can read the key.
        """
        key = self.key
        try:
            if key.stat().st_mode & stat.S_IRWXO:
                raise BadConfiguration(
                    cause=f"{key} is a private key, and everybody may read it",
                    cure=f"chmod o= {key}; if somebody has read it, have a new certificate made",
                )
            files = (key, self.certificate)
            return Pair(*(file.read_bytes().removeprefix(BOM_UTF8) for file in files))
        except OSError as error:
            raise BadConfiguration(
                cause=f"{error.filename} cannot be read: {error.strerror}",
                cure="Name files in tls_cert and tls_key that the coordinator's user can read",
            ) from error


class _Signed:
    """A pair signed by the authority for this device's names and addresses, made again when these
    change and before it expires. Its key is never written to disk.
    """

    def __init__(self, settings: CoordinatorSettings) -> None:
        authority = Authority.load(settings.state_dir)
        if authority is None or not authority.signs:
            raise BadConfiguration(
                cause=f"tls is set, and there is no cluster authority in {settings.state_dir} that "
                "signs certificates",
                cure="Make one with `imbrex cluster init`, or set tls_cert and tls_key",
            )
        self._authority = authority
        self._more = settings.tls_names
        self._made: tuple[tuple[str, ...], Pair] | None = None

    def read(self) -> Pair:
        """The pair for the names and addresses of now."""
        names = (*own_names(), *self._more)
        now = now_utc()
        if self._made is not None:
            before, pair = self._made
            if before == names and now < certificate_end(pair.certificate_pem) - RENEWED_BEFORE_END:
                return pair
        pair = Pair(*self._authority.for_clients(names, now))
        self._made = names, pair
        return pair


def own_names() -> tuple[str, ...]:
    """This device's names for clients: its name, also in mDNS, and its addresses."""
    host = socket.gethostname().partition(".")[0]
    families = (socket.AF_INET, socket.AF_INET6)
    addresses = {
        address.address.partition("%")[0]
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family in families
    }
    return (host, f"{host}.local", "localhost", *sorted(addresses))


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    # Python reads keys only from files, so it is put into an anonymous file in memory.
    with os.fdopen(os.memfd_create("imbrex"), "wb") as file:
        file.write(pair.key_pem + b"\n" + pair.certificate_pem)
        file.flush()
        try:
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")
        except (ssl.SSLError, ValueError) as error:
            raise BadConfiguration(
                cause=f"the certificate for clients and its key cannot be used: {error}",
                cure="Give a certificate chain and its unencrypted key as PEM, leaf first",
            ) from error
