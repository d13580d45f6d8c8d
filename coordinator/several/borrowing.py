"""Fetches a file of an installed model from another coordinator. It is resumed where it broke off,
and nothing is kept of what has another hash.
"""

import asyncio
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from coordinator.several.listed import ListedFile
from models.catalogue.installed import SPARE_BYTES
from models.tensors.memory import megabytes
from protos import imbrex_pb2 as pb
from protos.errors import ImbrexError, PeerViolation, Unavailable
from protos.rpc.channels import Caller, make_channel
from protos.rpc.worker_client import CHUNK_BYTES
from protos.status import error_from
from protos.trust.identity import coordinator_name
from protos.wire import versions

# Longest silence: Wi-Fi in a far room pauses for seconds.
SILENCE_S = 10.0
# Longest time for a file: this, and as long as it takes at the slowest.
LEAST_S, SLOWEST_BYTES_PER_S = 60.0, 50_000.0
_METHOD = "/imbrex.v1.Library/Fetch"
# The complete sizes of files that are being written now.
_coming: dict[Path, int] = {}


@dataclass(frozen=True, slots=True)
class LendingCoordinator:
    """Another coordinator, and where it gives files."""

    id: str
    name: str
    address: str


async def fetch(source: LendingCoordinator, caller: Caller, file: ListedFile, part: Path) -> None:
    """Completes `part`, which holds the first bytes of the file or does not exist.

    Raises:
        Unavailable: no answer, or it broke off: what has come is kept. Or the disk is full.
        PeerViolation: that is not the file; nothing is kept.
        ImbrexError: what the other one says.
    """
    missing = file.size_bytes - size_of(part)
    with reserved(part.parent, part, missing):
        await _fetch(source, caller, file, part, missing)


async def _fetch(
    source: LendingCoordinator, caller: Caller, file: ListedFile, part: Path, missing: int
) -> None:
    channel = make_channel(source.address, caller.credentials, coordinator_name(source.id))
    try:
        with await asyncio.to_thread(part.open, "ab") as target:
            async with asyncio.timeout(LEAST_S + missing / SLOWEST_BYTES_PER_S):
                await _append(channel, caller, file, target)
    except grpc.aio.AioRpcError as failure:
        raise error_from(failure, source.address) from failure
    except PeerViolation:
        await asyncio.to_thread(part.unlink, missing_ok=True)
        raise
    except TimeoutError:
        raise Unavailable(
            cause=f"{source.address} was silent or too slow", cure="It is asked again by itself"
        ) from None
    except OSError as error:
        raise Unavailable(
            cause=f"{part.parent} cannot be written ({error.strerror})", cure="Free some space"
        ) from error
    finally:
        await channel.close(None)
    if size_of(part) < file.size_bytes:
        raise Unavailable(
            cause=f"it ended after {size_of(part)} of {file.size_bytes} bytes",
            cure="It is continued by itself",
        )
    await asyncio.to_thread(verify, part, file)


@contextmanager
def reserved(folder: Path, part: Path, missing_bytes: int) -> Iterator[None]:
    """While this context is open, other files leave room for the rest of this one.

    Raises:
        Unavailable: there is too little room.
    """
    require_space(folder, missing_bytes)
    _coming[part] = size_of(part) + missing_bytes
    try:
        yield
    finally:
        del _coming[part]


def require_space(folder: Path, missing_bytes: int) -> None:
    """Refuses to fill the disk, on which other files are still being written.

    Raises:
        Unavailable: there is too little room.
    """
    coming = sum(max(0, complete - size_of(part)) for part, complete in _coming.items())
    free, needed = shutil.disk_usage(folder).free, missing_bytes + coming + SPARE_BYTES
    if free < needed:
        raise Unavailable(
            cause=f"{folder} needs {megabytes(needed)}, but has {megabytes(free)} free",
            cure="Free some space on that disk",
        )


def size_of(part: Path) -> int:
    """Bytes of a file, 0 without one."""
    try:
        return part.stat().st_size
    except FileNotFoundError:
        return 0


async def _append(channel: grpc.aio.Channel, caller: Caller, file: ListedFile, target: Any) -> None:
    method: Any = channel.unary_stream(
        _METHOD,
        request_serializer=pb.FileQuery.SerializeToString,
        response_deserializer=pb.BlobChunk.FromString,
    )
    here = target.tell()
    query = pb.FileQuery(protocol=versions.SPOKEN.newest, sha256=file.sha256, offset=here)
    call = method(query, metadata=caller.metadata)
    try:
        is_first = True
        while True:
            async with asyncio.timeout(SILENCE_S):
                chunk = await call.read()
            if not isinstance(chunk, pb.BlobChunk):  # the end of the stream
                break
            said = (chunk.sha256, chunk.total_bytes)
            if is_first and said != (file.sha256, file.size_bytes):
                raise _another(f"it has {chunk.total_bytes} bytes, not {file.size_bytes}")
            following = here + len(chunk.data)
            is_empty = not is_first and not chunk.data
            is_long = len(chunk.data) > CHUNK_BYTES or following > file.size_bytes
            if chunk.offset != here or is_empty or is_long:
                raise _another(f"its bytes do not continue the {here} that are here")
            here = following
            is_first = False
            await asyncio.to_thread(target.write, chunk.data)
    finally:
        call.cancel()
        await asyncio.to_thread(target.flush)


def verify(part: Path, file: ListedFile) -> None:
    """Refuses, and deletes, what is not the file.

    Raises:
        PeerViolation: it has another hash.
    """
    with part.open("rb") as read:
        found = hashlib.file_digest(read, "sha256").hexdigest()
        os.fsync(read.fileno())
    if found != file.sha256:
        part.unlink()
        raise _another(f"its SHA-256 is {found}, not {file.sha256}")


def _another(why: str) -> ImbrexError:
    return PeerViolation(
        cause=f"what it sends is another file: {why}",
        cure="See whether its card is damaged: compare the file there with `sha256sum`",
    )
