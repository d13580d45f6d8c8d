"""Transfers programs and weights to a worker: each once, resumed where a transfer stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from models.cut.program import BlobSource, Program
from protos import imbrex_pb2 as pb
from protos.errors import Infeasible, PeerViolation
from protos.rpc.worker_client import CHUNK_BYTES, WorkerClient

# Making a session of a large block takes seconds on a Pi; after this long the worker is stuck.
PREPARE_TIMEOUT_S = 300.0
# Bytes of graphs per Prepare: half of a message's limit, since graphs may hold small constants.
_PREPARE_BYTES = 32 << 20
# Programs that are remembered per worker: benchmarking every strategy on every network takes some
# hundred, and plans that follow a drift add new ones without end.
MOST_READY = 4096
# A worker short of disk may evict a blob before its program is prepared, and asks for it again.
_ROUNDS = 3

UploadProgress = Callable[
    [int, int], None
]  # (bytes present, bytes in total) of the missing weights


class Programs:
    """The programs that a connected worker has prepared. Concurrent callers that need the same
    programs wait for one transfer; a transfer that broke off is resumed by the next call, at the
    byte that the worker names.
    """

    def __init__(self, client: WorkerClient) -> None:
        self._client = client
        # Hashes of what is prepared, the most recently requested last.
        self.ready: dict[str, None] = {}
        self._one_at_a_time = asyncio.Lock()
        # Bytes present and in total of the weights in transit; None if there are none.
        self.arriving: tuple[int, int] | None = None
        # Uploads that began, and those that ended.
        self.transfers = 0

    def forget(self, sha256: str) -> None:
        """The worker reported that it no longer has this program."""
        self.ready.pop(sha256, None)

    async def ensure(
        self, programs: Sequence[Program], blobs: BlobSource, progress: UploadProgress | None = None
    ) -> None:
        """Transfers what is missing; returns when all of `programs` can run.

        Raises:
            LostWorker: the connection failed.
            Infeasible: the worker cannot make a session, for example for lack of memory.
            ImbrexError: it refused a transfer (full disk, bytes that differ from their hash).
        """
        if all(program.sha256 in self.ready for program in programs):
            return
        async with self._one_at_a_time:
            self.transfers += 1
            wanted = {
                program.sha256: program for program in programs if program.sha256 not in self.ready
            }
            try:
                for batch in _batches(list(wanted.values())):
                    await self._prepare(batch, blobs, progress)
            finally:
                self.transfers += 1
                self.arriving = None

    async def retain(self, hashes: Sequence[str]) -> int:
        """Drops all programs except these; returns the worker's memory in use, in bytes."""
        async with self._one_at_a_time:
            return await self._retain(hashes)

    async def drop(self, hashes: Iterable[str]) -> None:
        """Drops these programs on the worker."""
        gone = self.ready.keys() & set(hashes)
        if gone:
            async with self._one_at_a_time:
                await self._retain(list(self.ready.keys() - gone))

    async def _retain(self, hashes: Sequence[str]) -> int:
        resident_bytes = await self._client.retain(hashes)
        for gone in self.ready.keys() - set(hashes):
            del self.ready[gone]
        return resident_bytes

    async def _prepare(
        self, programs: Sequence[Program], blobs: BlobSource, progress: UploadProgress | None
    ) -> None:
        messages = [program_message(program) for program in programs]
        for _ in range(_ROUNDS):
            reply = await self._client.prepare(messages, PREPARE_TIMEOUT_S)
            if not reply.missing:
                self._take(reply, programs)
                return
            await self._push(list(reply.missing), programs, blobs, progress)
        raise Infeasible(
            cause=f"{self._client.address} does not keep the weights that it receives",
            cure="Give its worker more disk (setting disk_mb)",
        )

    async def _push(
        self,
        missing: Sequence[str],
        programs: Sequence[Program],
        blobs: BlobSource,
        progress: UploadProgress | None,
    ) -> None:
        named = {ref.sha256 for program in programs for ref in program.weights}
        if not named.issuperset(missing):
            raise PeerViolation(
                cause=f"{self._client.address} asks for weights that no program names"
            )
        have = await self._client.missing(missing)
        sizes = {sha256: blobs.size_of(sha256) for sha256 in have}
        total = sum(sizes.values())
        done = sum(have.values())
        self._arrived(done, total, progress)
        for sha256, offset in have.items():
            parts = blobs.chunks(sha256, offset, CHUNK_BYTES)
            await self._client.put(sha256, parts, sizes[sha256], offset)
            done += sizes[sha256] - offset
            self._arrived(done, total, progress)

    def _arrived(self, done: int, total: int, progress: UploadProgress | None) -> None:
        self.arriving = (done, total)
        if progress is not None:
            progress(done, total)

    def _take(self, reply: pb.PrepareReply, programs: Sequence[Program]) -> None:
        """Records the programs that are ready; raises for the first that is not."""
        errors = {outcome.program: outcome.error for outcome in reply.programs}
        silent = "the worker did not report it"
        failed = [e for program in programs if (e := errors.get(program.sha256, silent))]
        for program in programs:
            if errors.get(program.sha256) == "":
                self.ready.pop(program.sha256, None)
                self.ready[program.sha256] = None
        # A program that is forgotten here is requested again, which costs the worker nothing.
        for old in list(self.ready)[: max(0, len(self.ready) - MOST_READY)]:
            del self.ready[old]
        if failed:
            raise Infeasible(
                cause=f"{self._client.address} cannot prepare a program: {failed[0]}",
                cure="See the log of that device's worker",
            )


def program_message(program: Program) -> pb.Program:
    """A program as a message."""
    weights = [
        pb.Weight(name=ref.name, sha256=ref.sha256, data_type=ref.data_type, dims=ref.dims)
        for ref in program.weights
    ]
    return pb.Program(sha256=program.sha256, graph=program.graph, weights=weights)


def _batches(programs: Sequence[Program]) -> Iterator[list[Program]]:
    batch: list[Program] = []
    size_bytes = 0
    for program in programs:
        if batch and size_bytes + len(program.graph) > _PREPARE_BYTES:
            yield batch
            batch, size_bytes = [], 0
        batch.append(program)
        size_bytes += len(program.graph)
    if batch:
        yield batch
