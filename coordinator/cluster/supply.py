"""Supplies one worker with programs and their weights, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from models.program import BlobSource, Program
from protos import imbrex_pb2 as pb
from protos.client import WorkerClient
from protos.errors import Infeasible, PeerViolation

# Graphs per Prepare: half of what a message may carry, for graphs that keep small constants.
_PREPARE_BYTES = 32 << 20
# A worker short of disk may evict a blob before its program is prepared; then it asks again.
_ROUNDS = 3
# Asking for 65 bytes each, well under a message's limit; also bounds a nonsensical answer.
_MAX_BLOBS = 100_000

Progress = Callable[[int, int], None]  # (bytes done, bytes altogether) of missing weights


class PrepareFailed(Infeasible):
    """A worker cannot run a program; others may."""


class Supply:
    """What one connected worker has been given. Concurrent callers that need the same programs
    wait for one transfer; one that breaks off is resumed by the next call, at the byte where the
    worker says it stopped.
    """

    def __init__(self, client: WorkerClient) -> None:
        self._client = client
        self._prepared: set[str] = set()
        self._one_at_a_time = asyncio.Lock()

    @property
    def prepared(self) -> frozenset[str]:
        """Hashes of the programs that are ready there."""
        return frozenset(self._prepared)

    def has(self, programs: Sequence[Program]) -> bool:
        """Whether all of them are ready."""
        return all(program.sha256 in self._prepared for program in programs)

    def forget(self, program: str) -> None:
        """The worker no longer has this program."""
        self._prepared.discard(program)

    async def ensure(
        self, programs: Sequence[Program], blobs: BlobSource, progress: Progress | None
    ) -> None:
        """Makes the programs ready.

        Raises:
            PrepareFailed: the worker says why it cannot.
            ImbrexError: a transfer failed or was refused.
        """
        async with self._one_at_a_time:
            lacking = {p.sha256: p for p in programs if p.sha256 not in self._prepared}
            for batch in _batches(list(lacking.values())):
                await self._prepare(batch, blobs, progress)

    async def retain(self, programs: Sequence[str]) -> int:
        """Drops all programs but these; returns the bytes of memory in use there."""
        async with self._one_at_a_time:
            resident_bytes = await self._client.retain(programs)
            self._prepared &= set(programs)
            return resident_bytes

    async def _prepare(
        self, batch: Sequence[Program], blobs: BlobSource, progress: Progress | None
    ) -> None:
        messages = [_message(program) for program in batch]
        for _ in range(_ROUNDS):
            reply = await self._client.prepare(messages)
            if not reply.missing:
                self._take(reply, batch)
                return
            await self._push(reply.missing, blobs, progress)
        raise PrepareFailed(
            cause=f"{self._client.address} keeps losing weights that it was sent",
            cure="Raise disk_mb on this worker",
        )

    async def _push(
        self, missing: Sequence[str], blobs: BlobSource, progress: Progress | None
    ) -> None:
        hashes = list(dict.fromkeys(missing))
        if len(hashes) > _MAX_BLOBS or any(sha256 not in blobs for sha256 in hashes):
            raise PeerViolation(
                cause=f"{self._client.address} asks for weights that no program names",
                cure="Run the same version of imbrex on every device",
            )
        have = await self._client.missing(hashes)
        sizes = {sha256: len(blobs.bytes_of(sha256)) for sha256 in have}
        total = sum(sizes.values())
        done = sum(min(offset, sizes[sha256]) for sha256, offset in have.items())
        for sha256, offset in have.items():
            if progress is not None:
                progress(done, total)
            # A worker that has more than there is has something else: it is told so at the end.
            start = min(offset, sizes[sha256])
            await self._client.put(sha256, blobs.bytes_of(sha256), start)
            done += sizes[sha256] - start
        if progress is not None:
            progress(done, total)

    def _take(self, reply: pb.PrepareReply, batch: Sequence[Program]) -> None:
        answers = {entry.program: entry.error for entry in reply.programs}
        failure = ""
        for program in batch:
            error = answers.get(program.sha256, "it gave no answer about this program")
            if not error:
                self._prepared.add(program.sha256)
            failure = failure or error
        if failure:
            raise PrepareFailed(
                cause=f"{self._client.address} cannot prepare a program: {failure}",
                cure="It is planned without this device; see the worker's log",
            )


def _batches(programs: Sequence[Program]) -> Iterator[list[Program]]:
    batch: list[Program] = []
    size = 0
    for program in programs:
        if batch and size + len(program.graph) > _PREPARE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(program)
        size += len(program.graph)
    if batch:
        yield batch


def _message(program: Program) -> pb.Program:
    weights = [
        pb.Weight(name=ref.name, sha256=ref.sha256, data_type=ref.data_type, dims=ref.dims)
        for ref in program.weights
    ]
    return pb.Program(sha256=program.sha256, graph=program.graph, weights=weights)
