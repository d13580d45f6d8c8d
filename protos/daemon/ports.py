"""Where daemons listen, and why they cannot: another process holds the port, or the address is
another machine's.
"""

import socket

import grpc
import psutil  # type: ignore[import-untyped, unused-ignore]

from protos.errors import BadConfiguration

# Below it, a port is root's.
_FIRST_PORT = 1024


def listen(
    server: grpc.aio.Server,
    host: str,
    port: int,
    settings: tuple[str, str],
    credentials: grpc.ServerCredentials | None = None,
) -> int:
    """Binds the server, with TLS if there are credentials; returns the port (a free one for 0).

    Raises:
        BadConfiguration: as `cannot_listen`.
    """
    address = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
    try:
        bound = (
            server.add_insecure_port(address)
            if credentials is None
            else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        raise cannot_listen(host, port, settings, str(error)) from error
    if not bound:
        raise cannot_listen(host, port, settings)
    return int(bound)


def cannot_listen(
    host: str, port: int, settings: tuple[str, str], reason: str = ""
) -> BadConfiguration:
    """The error of a daemon that cannot listen there; `settings`: what sets host and port."""
    where = f"cannot listen on {f'[{host}]' if ':' in host and '[' not in host else host}:{port}"
    host_setting, port_setting = settings
    if not _is_own(host):
        return BadConfiguration(
            cause=f"{where}: {host} is not an address of this machine",
            cure=f"Set {host_setting} to one of its addresses; 0.0.0.0 stands for all of them",
        )
    if holder := holder_of(port) if port else None:
        return BadConfiguration(
            cause=f"{where}: port {port} is taken by {holder}",
            cure=f"Stop that program, or choose another port with {port_setting}",
        )
    return BadConfiguration(
        cause=f"{where}: " + ("only root may use this port" if port < _FIRST_PORT else reason),
        cure=f"Choose another port with {port_setting}",
    )


def _is_own(host: str) -> bool:
    """Whether something can listen at this address, on whatever port."""
    plain = host.strip("[]")
    try:
        family, kind, _, _, address = socket.getaddrinfo(plain, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def holder_of(port: int) -> str | None:
    """The process that listens on a TCP port, as `name (process 123)`."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return "another process"
    for connection in connections:
        local = connection.laddr
        if connection.status != psutil.CONN_LISTEN or not local or local.port != port:
            continue
        if connection.pid is None:
            return "a process of another user"
        try:
            return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
        except psutil.NoSuchProcess:
            return f"process {connection.pid}"
    return None
