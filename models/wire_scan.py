"""How much an ONNX file would hold in memory, told from its bytes before any of it is parsed.

Protobuf makes an object of a hundred bytes of a field of two, and eight bytes of a number of one.
So a file is walked first, field by field along ONNX's own declarations, and no further than it is
allowed to be long. Bytes of weights are skipped, whatever their size.
"""

from __future__ import annotations

from typing import cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from onnx import ModelProto

from models.memory import megabytes

# Networks of ten thousand nodes with all their attributes have about half a million.
MOST_FIELDS = 1_000_000
# Weights that are written as numbers take up to eight times their bytes; most are written as bytes.
MOST_NUMBERS = 1 << 24
# As protobuf itself has it.
_DEEPEST = 100
_FLAT = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_AS_THEY_ARE = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)


class TooMuch(Exception):
    """More fields or numbers than a network has; the words say which."""


def require_small(data: bytes) -> None:
    """Walks the bytes of an ONNX model.

    Raises:
        TooMuch: it would take far more memory than its bytes.
        DecodeError: it is no protobuf message.
    """
    kind = cast("Descriptor", ModelProto.DESCRIPTOR)
    _Walk(memoryview(data)).message(0, len(data), kind, 0)


class _Walk:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._fields = 0
        self._numbers = 0

    def message(self, at: int, stop: int, kind: Descriptor, depth: int) -> None:
        """The fields of one message, which lies in [at, stop)."""
        if depth > _DEEPEST:
            raise DecodeError("nested too deeply")
        known = kind.fields_by_number
        while at < stop:
            self._fields += 1
            if self._fields > MOST_FIELDS:
                raise TooMuch(f"more than {MOST_FIELDS} fields")
            tag, at = self._varint(at, stop)
            match tag & 7:
                case 0:
                    _, at = self._varint(at, stop)
                case 1:
                    at += 8
                case 5:
                    at += 4
                case 2:
                    size, at = self._varint(at, stop)
                    if at + size > stop:
                        raise DecodeError("it ends too early")
                    field = known.get(tag >> 3)
                    if field is not None and field.message_type is not None:
                        self.message(at, at + size, field.message_type, depth + 1)
                    elif field is not None and field.type not in (*_FLAT, *_AS_THEY_ARE):
                        self._count(size)
                    at += size
                case _:
                    raise DecodeError("it has a group")
        if at > stop:
            raise DecodeError("it ends too early")

    def _count(self, most: int) -> None:
        """So many bytes hold at most as many numbers."""
        self._numbers += most
        if self._numbers > MOST_NUMBERS:
            raise TooMuch(f"{megabytes(MOST_NUMBERS)} and more of numbers in varying length")

    def _varint(self, at: int, stop: int) -> tuple[int, int]:
        value = shift = 0
        while at < stop and shift < 64:
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise DecodeError("it ends too early")
