"""Which process holds a port, for the error of a daemon that cannot listen."""

import psutil  # type: ignore[import-untyped, unused-ignore]


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
