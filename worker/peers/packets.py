"""What travels between workers: one packet for each box of a tensor.

    header      fixed, little-endian (`HEADER`): what follows, and which attempt of which task
    names       the request and the tensor, UTF-8
    box         start and stop of each dimension, u32 each
    payload     the box, little-endian and row-major

A stream begins with a greeting: who sends, and the cluster's secret where that is the proof.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from models.tensors.arrays import aligned_empty
from models.tensors.boxes import Box
from protos.errors import PeerViolation
from protos.wire.convert import DTYPES, MAX_DIMS, data_type_of
from protos.wire.frames import MAX_TENSOR_BYTES, pieces, runs
from worker.tasks.actions import TaskKey, TensorPiece

MAGIC = b"imbrex\x01"
# What the receiver says to a greeting that it accepts.
WELCOME = b"\x01"

_GREETING = struct.Struct("<7sBH")
# Mark (of the last packet of a message, or another), dimensions, data type, plan version, task,
# attempt, payload bytes, bytes of both names.
HEADER = struct.Struct("<HBBQIIIHH")
LAST, _MORE = 0x1B7E, 0x1B7F
# Requests are named by us (`uuid4`) or by clients; tensors by exporters.
_MOST_NAME = 4096

# Boxes whose encoded form is cached: those of a few plans.
_MOST_PLACES = 1024
# Bytes read at once, if available: a small halo then takes one system call.
_AHEAD_BYTES = 64 << 10


def split(parts: Iterable[TensorPiece]) -> Iterator[TensorPiece]:
    """The same pieces, cut to at most `MAX_TENSOR_BYTES` each."""
    for part in parts:
        if part.array.nbytes <= MAX_TENSOR_BYTES:
            yield part
            continue
        for cut in pieces(part.box, part.array.itemsize):
            box = Box.of(*cut)
            yield TensorPiece(part.key, part.tensor, box, part.array[box.slices(part.box)])


def packets(parts: Sequence[TensorPiece]) -> list[memoryview | bytes]:
    """The packets of these pieces, as buffers in order; payloads are views where runs are long.

    Every halo passes through here between two kernels, rarely enough to find the caches cold, so
    the code does as little as possible.
    """
    if any(part.array.nbytes > MAX_TENSOR_BYTES for part in parts):
        parts = tuple(split(parts))
    buffers: list[memoryview | bytes] = []
    left = len(parts)
    for part in parts:
        left -= 1
        key, array = part.key, part.array
        request, place = key.request.encode(), _place(part.tensor, part.box)
        header = HEADER.pack(
            _MORE if left else LAST,
            len(part.box),
            data_type_of(array.dtype),
            key.plan_version,
            key.task,
            key.attempt,
            array.nbytes,
            len(request),
            len(place) - 8 * len(part.box),
        )
        buffers.append(header + request + place)
        if not array.flags.c_contiguous:
            buffers.extend(runs(array))
        elif array.nbytes:
            buffers.append(array.data)
    return buffers


class PacketReader:
    """Reads the packets of a stream from a blocking socket; bytes read beyond a header are kept for
    the next packet.
    """

    def __init__(self, stream: socket.socket, sender: str) -> None:
        self._stream = stream
        self._sender = sender
        self._buffer = memoryview(bytearray(_AHEAD_BYTES))
        self._start = self._stop = 0

    @property
    def holds_more(self) -> bool:
        """Whether bytes were read that belong to what follows."""
        if self._start < self._stop:
            return True
        return isinstance(self._stream, ssl.SSLSocket) and self._stream.pending() > 0

    def next(self) -> tuple[TensorPiece, bool] | None:
        """The next packet, and whether its message ends with it; None at the stream's end.

        Raises:
            PeerViolation: the packet is malformed or truncated.
        """
        if not self._has(HEADER.size):
            if self._start == self._stop:
                return None
            raise _violation("ended the stream within a packet")
        mark, dims, kind, version, task, attempt, size, request_bytes, tensor_bytes = (
            HEADER.unpack_from(self._buffer, self._start)
        )
        longest = max(request_bytes, tensor_bytes)
        if mark not in (LAST, _MORE) or dims > MAX_DIMS or longest > _MOST_NAME:
            raise _violation("sent a malformed packet")
        dtype = DTYPES.get(kind)
        if dtype is None:
            raise _violation(f"sent a tensor of data type {kind}, which the wire does not carry")
        length = HEADER.size + request_bytes + tensor_bytes + 8 * dims
        if not self._has(length):
            raise _violation("ended the stream within a packet")
        names, stop = self._start + HEADER.size, self._start + length
        request = _text(bytes(self._buffer[names : names + request_bytes]))
        place = bytes(self._buffer[names + request_bytes : stop])
        tensor, box, shape, elements = _placed(place, tensor_bytes)
        self._start = stop
        if size > MAX_TENSOR_BYTES or size != elements * dtype.itemsize:
            raise _violation(f"sent {size} bytes for a box {box} of {dtype}")
        array = aligned_empty(shape, dtype)
        if size:
            self._fill(array.data.cast("B"))
        key = TaskKey(request, version, task, attempt)
        return TensorPiece(key, tensor, box, array, self._sender), mark == LAST

    def _has(self, size: int) -> bool:
        """Reads until `size` bytes are buffered; False if the stream ends before."""
        if self._stop - self._start >= size:
            return True
        ahead = self._stop - self._start
        self._buffer[:ahead] = bytes(self._buffer[self._start : self._stop])
        self._start, self._stop = 0, ahead
        while self._stop < size:
            got = self._stream.recv_into(self._buffer[self._stop :])
            if not got:
                return False
            self._stop += got
        return True

    def _fill(self, payload: memoryview) -> None:
        ahead = min(self._stop - self._start, len(payload))
        payload[:ahead] = self._buffer[self._start : self._start + ahead]
        self._start += ahead
        while ahead < len(payload):
            got = self._stream.recv_into(payload[ahead:])
            if not got:
                raise _violation("ended the stream within a packet")
            ahead += got


def greeting(sender: str, secret: str) -> bytes:
    """The greeting that begins a stream."""
    own, proof = sender.encode(), secret.encode()
    return _GREETING.pack(MAGIC, len(own), len(proof)) + own + proof


def read_greeting(stream: socket.socket) -> tuple[str, str]:
    """(the sender's id, the secret that it presents).

    Raises:
        PeerViolation: this is not a greeting.
    """
    header = _exactly(stream, _GREETING.size)
    if len(header) == _GREETING.size:
        magic, own, proof = _GREETING.unpack(header)
        if magic == MAGIC and proof <= _MOST_NAME:
            text = _exactly(stream, own + proof)
            if len(text) == own + proof:
                return text[:own].decode(errors="replace"), text[own:].decode(errors="replace")
    raise _violation("did not greet")


def _exactly(stream: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes, fewer at the stream's end; reads nothing beyond them."""
    received = b""
    while len(received) < size and (got := stream.recv(size - len(received))):
        received += got
    return received


@lru_cache(_MOST_PLACES)
def _place(tensor: str, box: Box) -> bytes:
    spans = (struct.pack("<II", span.start, span.stop) for span in box)
    return tensor.encode() + b"".join(spans)


@lru_cache(_MOST_PLACES)
def _placed(place: bytes, tensor_bytes: int) -> tuple[str, Box, tuple[int, ...], int]:
    """The tensor and the box, its shape and its elements."""
    pairs: Sequence[tuple[int, int]] = list(struct.iter_unpack("<II", place[tensor_bytes:]))
    if any(start > stop for start, stop in pairs):
        raise _violation("sent a box that ends before it begins")
    box = Box.of(*pairs)
    return _text(place[:tensor_bytes]), box, box.shape, box.volume


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise _violation("sent names that are not UTF-8") from None


def _violation(what: str) -> PeerViolation:
    return PeerViolation(cause=f"a peer {what}")
