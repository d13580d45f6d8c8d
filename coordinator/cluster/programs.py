"""Programs and weights on their way to a worker: each only once, and resumed where it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from models.program import BlobSource, Program
from protos import imbrex_pb2 as pb
from protos.client import WorkerClient
from protos.errors import Infeasible

# Making a session of a large block takes seconds on a Pi; a worker that needs longer is stuck.
PREPARE_TIMEOUT_S = 300.0
_ATTEMPTS = 3


class Programs:
    """What one worker has prepared."""

    def __init__(self, client: WorkerClient) -> None:
        self._client = client
        self._ready: set[str] = set()
        self._lock = asyncio.Lock()

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._ready

    async def ensure(self, programs: Sequence[Program], blobs: BlobSource) -> None:
        """Brings what is missing; returns when all of `programs` can run.

        Raises:
            LostWorker: the connection broke.
            Infeasible: the worker cannot make a session, for example for lack of memory.
        """
        if all(program.sha256 in self._ready for program in programs):
            return
        async with self._lock:
            wanted = [each for each in programs if each.sha256 not in self._ready]
            if wanted:
                await self._prepare(wanted, blobs)

    async def _prepare(self, programs: Sequence[Program], blobs: BlobSource) -> None:
        messages = [program_message(program) for program in programs]
        for _ in range(_ATTEMPTS):
            reply = await self._client.prepare(messages, PREPARE_TIMEOUT_S)
            if not reply.missing:
                break
            for sha256, have_bytes in (await self._client.missing(list(reply.missing))).items():
                await self._client.put(sha256, blobs.bytes_of(sha256), have_bytes)
        if reply.missing:
            raise Infeasible(
                cause=f"{self._client.address} does not keep the weights it is sent",
                cure="Give its worker more disk (setting disk_mb).",
            )
        for prepared in reply.programs:
            if prepared.error:
                raise Infeasible(
                    cause=f"{self._client.address} cannot prepare a program: {prepared.error}",
                    cure="See the log of that device's worker.",
                )
            self._ready.add(prepared.program)


def program_message(program: Program) -> pb.Program:
    """A program on the wire."""
    return pb.Program(
        sha256=program.sha256,
        graph=program.graph,
        weights=[
            pb.Weight(
                name=ref.name, sha256=ref.sha256, data_type=ref.data_type, dims=list(ref.dims)
            )
            for ref in program.weights
        ],
    )
