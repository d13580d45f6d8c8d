"""Which cipher the daemons' TLS takes, on processors with instructions for AES and without."""

import asyncio
import os
import subprocess
import sys

import pytest

from protos.trust.ciphers import CHACHA20_FIRST, VARIABLE, prefer_quick_cipher
from protos.trust.identity import device_name
from tests.trust.support import HALL, KITCHEN, caller, make_trust

PI_4 = "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\n"
PI_5 = "processor\t: 0\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32\n"
NOT_SAID = "processor\t: 0\n"
AES, CHACHA20 = "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"

# A device that connects, and says which cipher was taken.
CLIENT = """
import socket, sys
from pathlib import Path
from protos.trust.credentials import Credentials
context = Credentials.load(Path(sys.argv[1])).tls_client()
with socket.create_connection(("127.0.0.1", int(sys.argv[2])), 30) as plain:
    with context.wrap_socket(plain, server_hostname=sys.argv[3]) as secured:
        print(secured.cipher()[0])
"""


@pytest.mark.parametrize(
    ("cpuinfo", "configured"),
    [(PI_4, str(CHACHA20_FIRST)), (PI_5, None), (NOT_SAID, None), (None, None)],
)
def test_a_processor_without_aes_is_found(cpuinfo, configured, tmp_path):
    file, environment = tmp_path / "cpuinfo", {}
    if cpuinfo is not None:
        file.write_text(cpuinfo)
    prefer_quick_cipher(environment, file)
    assert environment.get(VARIABLE) == configured


def test_a_configuration_of_ones_own_stays(tmp_path):
    file, environment = tmp_path / "cpuinfo", {VARIABLE: "/etc/ssl/home.cnf"}
    file.write_text(PI_4)
    prefer_quick_cipher(environment, file)
    assert environment == {VARIABLE: "/etc/ssl/home.cnf"}


@pytest.mark.parametrize(("configured", "taken"), [(False, AES), (True, CHACHA20)])
async def test_a_device_without_aes_gets_chacha20_of_one_that_has_it(configured, taken, tmp_path):
    trust = make_trust(tmp_path / "host")
    listening, connecting = (
        caller(trust.certified, device, tmp_path / device).credentials for device in (KITCHEN, HALL)
    )
    server = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=listening.tls_server()
    )
    port = server.sockets[0].getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    if configured:
        environment[VARIABLE] = str(CHACHA20_FIRST)
    async with server:
        said = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", CLIENT, str(connecting.path), str(port), device_name(KITCHEN)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (said.stdout.strip(), said.stderr) == (taken, "")
