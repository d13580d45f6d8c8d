"""The cipher that TLS prefers on this computer: ChaCha20 where the processor has no AES.

OpenSSL prefers AES on every processor. Those of Raspberry Pi 3 and 4 have no instructions for it,
and ChaCha20 (RFC 8439) takes them a fraction of the time. gRPC's own TLS chooses accordingly.
Before 3.15, Python's has no setting for the ciphers of TLS 1.3 but OpenSSL's configuration, which a
process reads once.
"""

from collections.abc import MutableMapping
from pathlib import Path

VARIABLE = "OPENSSL_CONF"
CHACHA20_FIRST = Path(__file__).with_name("chacha20-first.cnf")
# SSL_OP_PRIORITIZE_CHACHA of openssl/ssl.h: a server takes ChaCha20 if the client prefers it.
PRIORITIZE_CHACHA20 = 0x200000
_CPUINFO = Path("/proc/cpuinfo")


def prefer_quick_cipher(environment: MutableMapping[str, str], cpuinfo: Path = _CPUINFO) -> None:
    """Makes OpenSSL in this process and its children prefer ChaCha20 if the processor has no
    instructions for AES, unless their environment names a configuration already. To be called
    before anything imports `ssl` or `hashlib`.
    """
    if VARIABLE not in environment and not _has_aes(cpuinfo):
        environment[VARIABLE] = str(CHACHA20_FIRST)


def _has_aes(cpuinfo: Path) -> bool:
    """Also if that is unknown."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return True
    listed = [line for line in lines if line.startswith(("Features", "flags"))]
    return not listed or any("aes" in line.split() for line in listed)
