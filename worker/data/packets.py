"""What travels between workers: one packet for each box of a tensor.

    header      fixed, little-endian (`_HEADER`): what follows, and which attempt of which task
    names       the request and the tensor, UTF-8
    box         start and stop of each dimension, u32 each
    payload     the box, little-endian and row-major

A stream begins with a greeting: who sends, and the cluster's secret where that is the proof.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from models.boxes import Box
from protos.convert import DTYPES, MAX_DIMS, data_type_of
from protos.errors import PeerViolation
from protos.frames import MAX_TENSOR_BYTES, pieces, runs
from worker.programs.arrays import aligned_empty
from worker.tasks.actions import Piece, TaskKey

MAGIC = b"imbrex\x01"
# What the receiver says to a greeting that it accepts.
WELCOME = b"\x01"

_GREETING = struct.Struct("<7sBH")
# Mark (of the last packet of a message, or another), dimensions, data type, plan version, task,
# attempt, payload bytes, bytes of both names.
_HEADER = struct.Struct("<HBBQIIIHH")
_LAST, _MORE = 0x1B7E, 0x1B7F
# Requests are named by us (`uuid4`) or by clients; tensors by those who export networks.
_MOST_NAME = 4096

Read = Callable[[int], bytes]
ReadInto = Callable[[memoryview], int]


def split(parts: Iterable[Piece]) -> Iterator[Piece]:
    """The same in pieces of at most `MAX_TENSOR_BYTES`."""
    for part in parts:
        if part.array.nbytes <= MAX_TENSOR_BYTES:
            yield part
            continue
        for cut in pieces(part.box.spans, part.array.itemsize):
            box = Box.of(*cut)
            yield Piece(part.key, part.tensor, box, part.array[box.slices(part.box)])


def packets(parts: Iterable[Piece]) -> list[memoryview]:
    """The packets of these pieces, as buffers in order; payloads are views where runs are long."""
    buffers: list[memoryview] = []
    cut = list(split(parts))
    for part in cut:
        key = part.key
        request, tensor = key.request.encode(), part.tensor.encode()
        header = _HEADER.pack(
            _LAST if part is cut[-1] else _MORE,
            len(part.box),
            data_type_of(part.array.dtype),
            key.plan_version,
            key.task,
            key.attempt,
            part.array.nbytes,
            len(request),
            len(tensor),
        )
        buffers.append(memoryview(b"".join((header, request, tensor, _packed(part.box)))))
        buffers.extend(memoryview(run) for run in runs(part.array))
    return buffers


def read_packet(read: Read, read_into: ReadInto, sender: str) -> tuple[Piece, bool] | None:
    """The next packet of a stream, and whether its message ends with it; None at the stream's end.
    `read` and `read_into` return less than asked for only there.

    Raises:
        PeerViolation: it makes no sense, or breaks off.
    """
    header = read(_HEADER.size)
    if not header:
        return None
    if len(header) < _HEADER.size:
        raise _violation("broke off within a packet")
    mark, dims, kind, version, task, attempt, size, request_bytes, tensor_bytes = _HEADER.unpack(
        header
    )
    longest = max(request_bytes, tensor_bytes)
    if mark not in (_LAST, _MORE) or dims > MAX_DIMS or longest > _MOST_NAME:
        raise _violation("sent what is no packet")
    dtype = DTYPES.get(kind)
    if dtype is None:
        raise _violation(f"sent a tensor of data type {kind}, which does not travel")
    tail = read(request_bytes + tensor_bytes + 8 * dims)
    if len(tail) < request_bytes + tensor_bytes + 8 * dims:
        raise _violation("broke off within a packet")
    names = request_bytes + tensor_bytes
    box = _box(tail[names:])
    if size > MAX_TENSOR_BYTES or size != box.volume * dtype.itemsize:
        raise _violation(f"sent {size} bytes for a box {box} of {dtype}")
    try:
        request, tensor = tail[:request_bytes].decode(), tail[request_bytes:names].decode()
    except UnicodeDecodeError:
        raise _violation("sent names that are no text") from None
    array = aligned_empty(box.shape, dtype)
    if size and read_into(array.reshape(-1).view(np.uint8).data) < size:
        raise _violation("broke off within a packet")
    key = TaskKey(request, version, task, attempt)
    return Piece(key, tensor, box, array, sender), mark == _LAST


def greeting(sender: str, secret: str) -> bytes:
    """How a stream begins."""
    own, proof = sender.encode(), secret.encode()
    return _GREETING.pack(MAGIC, len(own), len(proof)) + own + proof


def read_greeting(read: Read) -> tuple[str, str]:
    """(who sends, the secret that it knows).

    Raises:
        PeerViolation: this is no greeting.
    """
    header = read(_GREETING.size)
    if len(header) == _GREETING.size:
        magic, own, proof = _GREETING.unpack(header)
        if magic == MAGIC and proof <= _MOST_NAME:
            text = read(own + proof)
            if len(text) == own + proof:
                return text[:own].decode(errors="replace"), text[own:].decode(errors="replace")
    raise _violation("did not greet")


@lru_cache(4096)
def _packed(box: Box) -> bytes:
    return b"".join(struct.pack("<II", span.start, span.stop) for span in box.spans)


@lru_cache(4096)
def _box(packed: bytes) -> Box:
    pairs: Sequence[tuple[int, int]] = list(struct.iter_unpack("<II", packed))
    if any(start > stop for start, stop in pairs):
        raise _violation("sent a box that ends before it begins")
    return Box.of(*pairs)


def _violation(what: str) -> PeerViolation:
    return PeerViolation(
        cause=f"a peer {what}", cure="Run the same version of imbrex on every device"
    )
