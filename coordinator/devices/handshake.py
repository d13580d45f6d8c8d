"""Why TLS with a worker fails: which certificate is not valid by whose clock.

A gRPC server that rejects a certificate closes the connection without an alert, so its client sees
no reason. A handshake of our own that verifies nothing shows more: in TLS 1.3 the server sends its
certificate before it judges the client's [RFC 8446, section 2]. If the same authority signed both,
and ours is valid by our clock, a server that closes the connection has another time.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from protos.errors import BadConfiguration
from protos.trust.credentials import Credentials
from protos.trust.identity import SET_CLOCKS, now_utc, shown, validity_problem

# Far more than a round trip in a home, far less than the timeout of a device that does not answer.
TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Shaken:
    """What a handshake showed: the peer's certificate, and whether it closed when it saw ours."""

    theirs: x509.Certificate
    hung_up: bool


async def clock_problem(address: str, credentials: Credentials) -> BadConfiguration | None:
    """The wrong clock, here or there, if that is why TLS with a worker fails."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            shaken = await _shake(address, credentials)
    except (OSError, ValueError, TimeoutError):
        return None  # no answer, or not TLS
    own, authority = map(
        x509.load_pem_x509_certificate,
        (credentials.identity.certificate_pem, credentials.identity.authority_pem),
    )
    try:
        shaken.theirs.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return None  # a worker of another cluster: its clock does not matter
    return judged(address, shaken, own, now_utc())


def judged(
    address: str, shaken: Shaken, own: x509.Certificate, now: datetime
) -> BadConfiguration | None:
    """The clock problem that a handshake with a worker of this cluster showed, if this machine's
    clock says `now`.
    """
    for whose, certificate in (("its", shaken.theirs), ("our", own)):
        if problem := validity_problem(certificate, now):
            cause = f"{address} cannot be used: {whose} certificate {problem}"
            return BadConfiguration(cause=cause, cure=SET_CLOCKS)
    if not shaken.hung_up:
        return None
    begin, end = map(shown, (own.not_valid_before_utc, own.not_valid_after_utc))
    cause = (
        f"{address} rejects our certificate, although the same authority signed both. It is valid "
        f"from {begin} to {end}, so the clock of that device must show another time; the clock of "
        f"this device shows {shown(now)}"
    )
    return BadConfiguration(cause=cause, cure=SET_CLOCKS)


async def _shake(address: str, credentials: Credentials) -> Shaken:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    await asyncio.to_thread(context.load_cert_chain, credentials.path)
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        hung_up = False
        try:
            async with asyncio.timeout(TIMEOUT_S / 2):
                hung_up = not await reader.read(1)  # acceptance brings HTTP/2 settings
        except TimeoutError:
            pass
        except (ssl.SSLError, ConnectionError):
            hung_up = True
        return Shaken(x509.load_der_x509_certificate(certificate), hung_up)
    finally:
        writer.transport.abort()  # waiting for an orderly end could take long
