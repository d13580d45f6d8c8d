"""Listening, with an error that says who has the port."""

import grpc.aio
import psutil  # type: ignore[import-untyped, unused-ignore]

from protos.errors import BadConfiguration


def listen(server: grpc.aio.Server, host: str, port: int) -> int:
    """Binds the server; returns the port (a free one for 0).

    Raises:
        BadConfiguration: the port is taken, or the address is not of this machine.
    """
    address = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
    try:
        bound: int = server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if bound:
        return bound
    holder = holder_of(port) if port else None
    if holder:
        raise BadConfiguration(
            cause=f"port {port} is taken by {holder}",
            cure="End that process, or choose another port",
        )
    raise BadConfiguration(
        cause=f"cannot listen on {address}",
        cure="Set host to an address of this machine, and port to a free one",
    )


def holder_of(port: int) -> str | None:
    """The process that listens on a TCP port, as `name (process 123)`."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return "another process"
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or connection.laddr.port != port:
            continue
        if connection.pid is None:
            return "a process of another user"
        try:
            return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
        except psutil.NoSuchProcess:
            return f"process {connection.pid}"
    return None
