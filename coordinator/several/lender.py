"""Gives files of installed models to the other coordinators of the cluster, and to nobody else."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import grpc
import grpc.aio
import structlog

from protos import imbrex_pb2 as pb
from protos.daemon.ports import listen
from protos.errors import ImbrexError, NotFound, Unavailable
from protos.imbrex_pb2_grpc import LibraryServicer, add_LibraryServicer_to_server
from protos.rpc.channels import SERVER_OPTIONS
from protos.rpc.gates import CertificateGate
from protos.rpc.serving import Context
from protos.rpc.worker_client import CHUNK_BYTES
from protos.status import fail
from protos.trust.credentials import Credentials
from protos.wire import versions

# Each reads one file; a cluster has two or three coordinators.
_MAX_CALLS = 8
_MAX_MESSAGE_BYTES = 64 << 10

log = structlog.get_logger(__name__)


class Lender(LibraryServicer):
    """Serves at `host:port` while it is started: the files at `paths`, by their hashes."""

    def __init__(self, credentials: Credentials, host: str, port: int) -> None:
        self._credentials = credentials
        self._host = host
        self._port = port
        self.paths: Mapping[str, Path] = {}
        self._gate = CertificateGate()
        self._server: grpc.aio.Server | None = None

    def allow(self, coordinators: Iterable[str]) -> None:
        """Sets who may call; the calls of others end."""
        self._gate.allow((), coordinators)

    async def start(self) -> int:
        """Starts listening; returns the port.

        Raises:
            BadConfiguration: the port is taken.
        """
        own = "grpc.max_receive_message_length"
        options = [option for option in SERVER_OPTIONS if option[0] != own]
        server = grpc.aio.server(
            interceptors=[self._gate],
            options=[*options, (own, _MAX_MESSAGE_BYTES)],
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        add_LibraryServicer_to_server(self, server)  # type: ignore[no-untyped-call, unused-ignore]
        ways = ("the setting enrol_host", "the setting share_port")
        port = listen(server, self._host, self._port, ways, self._credentials.of_server())
        await server.start()
        self._server = server
        return port

    async def stop(self) -> None:
        """Stops listening."""
        if self._server is not None:
            await self._server.stop(0)

    async def Fetch(self, request: pb.FileQuery, context: Context) -> None:  # noqa: N802
        """A file in chunks, from an offset on."""
        try:
            versions.SPOKEN.answer(request.protocol, "the other coordinator", "this one")
            path = self.paths.get(request.sha256)
            if path is None:
                raise NotFound(cause="it does not have the file either", cure="Ask another one")
            await _send(path, request, context)
        except ImbrexError as error:
            fail(context, error)
        except OSError as error:
            log.warning("a model's file cannot be read", cause=str(error))
            why = f"it cannot read the file ({error.strerror})"
            fail(context, Unavailable(cause=why, cure="See that coordinator's log"))


async def _send(path: Path, request: pb.FileQuery, context: Context) -> None:
    with await asyncio.to_thread(path.open, "rb") as file:
        total, offset = os.fstat(file.fileno()).st_size, int(request.offset)
        file.seek(offset)
        first = pb.BlobChunk(sha256=request.sha256, offset=offset, total_bytes=total)
        await context.write(first)
        while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
            await context.write(pb.BlobChunk(offset=offset, data=data))
            offset += len(data)
