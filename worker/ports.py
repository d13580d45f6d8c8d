"""Binding of ports, with an error that names the process that holds one."""

import grpc.aio

from protos.credentials import Credentials
from protos.errors import BadConfiguration
from protos.ports import holder_of


def listen(
    server: grpc.aio.Server, host: str, port: int, credentials: Credentials | None = None
) -> int:
    """Binds the server, over TLS where there are credentials; returns the port (a free one for 0).

    Raises:
        BadConfiguration: the port is taken, or the address is not this machine's.
    """
    address = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
    try:
        bound: int = (
            server.add_insecure_port(address)
            if credentials is None
            else server.add_secure_port(address, credentials.of_server())
        )
    except RuntimeError:
        bound = 0
    if bound:
        return bound
    holder = holder_of(port) if port else None
    if holder:
        raise BadConfiguration(
            cause=f"port {port} is taken by {holder}",
            cure="Stop that process, or choose another port",
        )
    raise BadConfiguration(
        cause=f"cannot listen on {address}",
        cure="Set host to an address of this machine, and port to a free one",
    )
