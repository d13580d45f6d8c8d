"""Limits on how large a message of the protocol may become in memory, checked before it is parsed.

Raw tensors keep their size, but everything else grows: two bytes on the wire can be an empty
message that takes seventy in memory. A walk over the outermost fields of protobuf's wire format
finds their number, and the bytes that are not raw tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.serving.common.body import json_too_large
from protos.errors import BadRequest

# A model has a few inputs and outputs, and a request a few parameters.
MOST_FIELDS = 1024
_INPUTS, _OUTPUTS, _RAW = 5, 6, 7  # of ModelInferRequest
_LENGTH = 2
_LONGEST_VARINT = 10


def require_bounded(data: bytes, most_typed_bytes: int) -> None:
    """Refuses a ModelInferRequest that would become far larger in memory.

    Raises:
        BadRequest: it has too many fields, or is malformed.
        BodyTooLarge: too many bytes of it are not raw tensors.
    """
    view, typed, count = memoryview(data), len(data), 0
    for number, inner in _fields(view):
        count += 1
        if number == _RAW:
            typed -= len(inner)
        elif number in (_INPUTS, _OUTPUTS):
            count += sum(1 for _ in _fields(inner))
        if count > MOST_FIELDS:
            raise BadRequest(
                cause=f"the message has more than {MOST_FIELDS} fields",
                cure="Send tensors packed, or as raw_input_contents",
            )
    if typed > most_typed_bytes:
        raise json_too_large(most_typed_bytes)


def require_small(data: bytes, most_bytes: int) -> None:
    """Refuses a large message that cannot contain tensors.

    Raises:
        BadRequest: it is too large.
    """
    if len(data) > most_bytes:
        raise BadRequest(
            cause=f"the message has {len(data)} bytes although it carries no tensor",
            cure="Send the message that inference.proto defines for this call",
        )


def _fields(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(number, contents) of each field, up to one more than allowed; contents only of fields with a
    length.
    """
    at = 0
    for _ in range(MOST_FIELDS + 1):
        if at >= len(view):
            return
        key, at = _varint(view, at)
        start = at
        match key & 7:
            case 0:
                _, at = _varint(view, at)
            case 1:
                at += 8
            case 2:
                length, start = _varint(view, at)
                at = start + length
            case 5:
                at += 4
            case _:
                raise _no_message()
        if at > len(view):
            raise _no_message()
        yield key >> 3, view[start:at] if key & 7 == _LENGTH else view[:0]


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for position, byte in enumerate(view[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value, at + position + 1
    raise _no_message()


def _no_message() -> BadRequest:
    return BadRequest(
        cause="the message cannot be read", cure="Send one as inference.proto defines it"
    )
