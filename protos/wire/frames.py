"""Frames: the encoding of tasks and tensors in one message of an Exchange stream.

    u32 little-endian   length of the header
    header              a serialised `Frame`: the items, in order
    payloads            the bytes of every tensor, ping and pong, in the order of their items;
                        each begins at the next multiple of 16 bytes from the message's start

A tensor's payload is exactly its box, or the entries of it that are kept, little-endian and
row-major. The padding lets a receiver use
the payload in place as an array of any type on the wire: a message is read into memory that begins
16-aligned, as CPython's `bytes` and numpy's arrays do.
"""

import struct
from collections.abc import Iterator, Sequence

import numpy as np
from google.protobuf.message import DecodeError

from protos import imbrex_pb2 as pb
from protos.errors import PeerViolation
from protos.wire.convert import MAX_DIMS, BoxRanges, SpanLike, dtype_of, ranges

Buffer = bytes | memoryview
Payload = np.ndarray | Buffer
ReceivedItem = tuple[pb.Item, np.ndarray | memoryview | None]

# Senders split above this. Measured on loopback: one 4 MB message moves twice as fast as the
# same bytes in chunks of 64 KiB; above 4 MB page faults of fresh buffers take over.
MAX_TENSOR_BYTES = 4 << 20

# Receivers refuse above this: a coalesced message holds several tensors and their headers.
MAX_MESSAGE_BYTES = 64 << 20

# Below this run length the join's cost per part exceeds what the avoided copy saves:
# (1, 512, 5, 14) float32 of a larger map takes 10 us copied, 240 us as 2560 runs of 280 bytes.
_MIN_RUN_BYTES = 8 << 10

_ALIGN = 16
_PAD = bytes(_ALIGN)
_LENGTH = struct.Struct("<I")
_WITH_PAYLOAD = ("tensor", "ping", "pong")


def encode(items: Sequence[pb.Item], payloads: Sequence[Payload] = ()) -> bytes:
    """One message as contiguous bytes; parameters as in `buffers`."""
    return b"".join(buffers(items, payloads))


def buffers(items: Sequence[pb.Item], payloads: Sequence[Payload] = ()) -> list[Buffer]:
    """One message, as buffers in order; payloads are views where runs are long. `payloads` has one
    entry per tensor, ping and pong among `items`, in order; their `payload_bytes` are filled in
    here. Arrays may be strided views.
    """
    left = iter(payloads)
    parts: list[Buffer] = []
    for item in items:
        kind = item.WhichOneof("kind")
        if kind not in _WITH_PAYLOAD:
            continue
        payload = next(left)
        size = payload.nbytes if not isinstance(payload, bytes) else len(payload)
        getattr(item, kind).payload_bytes = size
        parts.extend(runs(payload))
        if size % _ALIGN:
            parts.append(_PAD[: -size % _ALIGN])
    assert next(left, None) is None, "a payload without an item"
    header = pb.Frame(items=items).SerializeToString()
    start = _LENGTH.size + len(header)
    return [b"".join((_LENGTH.pack(len(header)), header, _PAD[: -start % _ALIGN])), *parts]


def decode(data: Buffer, most_header_bytes: int = MAX_MESSAGE_BYTES) -> list[ReceivedItem]:
    """The items of one message, with their payloads as views of `data`: tensors as read-only
    arrays of their box's shape, pings as memoryviews. The views keep `data` alive.

    Raises:
        PeerViolation: truncated, trailing bytes, sizes that disagree, unknown data type.
    """
    if len(data) < _LENGTH.size:
        raise _violation("sent a truncated frame")
    (length,) = _LENGTH.unpack_from(data)
    offset = _LENGTH.size + length
    if offset > len(data):
        raise _violation("sent a truncated frame")
    if length > most_header_bytes:
        raise _violation(
            f"sent a frame whose header has {length} bytes, more than the {most_header_bytes} "
            "allowed"
        )
    try:
        frame = pb.Frame.FromString(bytes(data[_LENGTH.size : offset]))
    except DecodeError:
        raise _violation("sent a frame whose header cannot be read") from None
    offset += -offset % _ALIGN
    view = memoryview(data).toreadonly()
    received: list[ReceivedItem] = []
    for item in frame.items:
        kind = item.WhichOneof("kind")
        if kind is None:
            raise _violation("sent an item of an unknown kind")
        if kind not in _WITH_PAYLOAD:
            received.append((item, None))
            continue
        size = getattr(item, kind).payload_bytes
        if size > len(data) - offset:
            raise _violation("sent a truncated frame")
        payload = view[offset : offset + size]
        offset += size + -size % _ALIGN
        received.append((item, _array(item.tensor, payload) if kind == "tensor" else payload))
    if offset != len(data):
        raise _violation(f"sent a frame of {len(data)} bytes whose items need {offset}")
    return received


def pieces(
    box: Sequence[SpanLike], itemsize: int, max_bytes: int = MAX_TENSOR_BYTES
) -> list[BoxRanges]:
    """Boxes of at most `max_bytes` that together cover `box`, cut along its outermost axis longer
    than one. A single row of that axis may exceed `max_bytes`: then it is cut again.
    """
    parts: list[BoxRanges] = []
    left: list[BoxRanges] = [tuple((span.start, span.stop) for span in box)]
    while left:
        part = left.pop()
        volume = itemsize
        for start, stop in part:
            volume *= stop - start
        axis = next((i for i, (start, stop) in enumerate(part) if stop - start > 1), None)
        if volume <= max_bytes or axis is None:
            parts.append(part)
            continue
        start, stop = part[axis]
        step = max(1, max_bytes // (volume // (stop - start)))
        left.extend(
            (*part[:axis], (low, min(stop, low + step)), *part[axis + 1 :])
            for low in reversed(range(start, stop, step))
        )
    return parts


def _array(tensor: pb.Tensor, payload: memoryview) -> np.ndarray:
    dtype = dtype_of(tensor.data_type)
    shape = [stop - start for start, stop in ranges(tensor.box)]
    if tensor.HasField("shape"):
        shape = list(tensor.shape.dims)
        if len(shape) > MAX_DIMS:
            raise _violation(f"sent a tensor of {len(shape)} dimensions")
    if tensor.HasField("kept"):
        if tensor.kept.axis >= len(shape):
            raise _violation(f"kept entries along axis {tensor.kept.axis} of {len(shape)}")
        shape[tensor.kept.axis] = len(tensor.kept.entries)
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    if size != len(payload):
        raise _violation(
            f"sent {len(payload)} bytes for {tensor.tensor!r} of shape {shape} and type {dtype}",
            tensor.request,
        )
    return np.frombuffer(payload, dtype).reshape(shape)


def runs(payload: Payload) -> Iterator[bytes | memoryview]:
    """The payload's bytes in order, in as few contiguous runs as its strides allow; copied into one
    run if the runs would be short.
    """
    if not isinstance(payload, np.ndarray):
        yield payload
        return
    if payload.size == 0:
        return
    if payload.flags.c_contiguous:
        yield payload.reshape(-1).view(np.uint8).data
        return
    axis, run = payload.ndim, payload.itemsize
    while axis and (payload.strides[axis - 1] == run or payload.shape[axis - 1] == 1):
        axis -= 1
        run *= payload.shape[axis]
    if axis and run < _MIN_RUN_BYTES:
        yield payload.tobytes()
        return
    for index in np.ndindex(payload.shape[:axis]):
        # A run is contiguous by construction, so this reshape never copies.
        yield payload[index].reshape(-1).view(np.uint8).data


def _violation(what: str, request: str = "") -> PeerViolation:
    return PeerViolation(cause=f"a peer {what}", request=request)
