"""Scans an ONNX file field by field, to find how much memory it would take before it is parsed, and
to locate its parts, so that large weights need not be parsed at all.

Protobuf turns a field of two bytes into an object of a hundred, and a number of one byte into
eight. So a file is first walked along ONNX's declarations, up to the permitted size. Bytes of
weights are skipped, whatever their size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import ModelProto

from models.tensors.memory import megabytes

# Networks of ten thousand nodes with all their attributes have about half a million.
MOST_FIELDS = 1_000_000
# Weights stored as numbers take up to eight times their bytes; most are stored as bytes.
MOST_NUMBERS = 1 << 24
# protobuf's own limit.
_DEEPEST = 100
_FLAT = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_AS_THEY_ARE = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)
_WINDOW_BYTES = 1 << 16
# The wire type of length-delimited fields.
LENGTH = 2


class TooMuch(Exception):
    """More fields or numbers than a network has; the message says which."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message in [begin, end); a length-delimited value is in [start, end)."""

    number: int
    wire_type: int
    begin: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes of the value."""
        return self.end - self.start


class BufferedFile:
    """The bytes of a file, with a window of it in memory."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._window = b""
        self._from = 0

    @property
    def whole(self) -> Field:
        """All of it, as a message."""
        return Field(0, LENGTH, 0, 0, self._size)

    def read(self, start: int, end: int) -> bytes:
        """The bytes in [start, end).

        Raises:
            DecodeError: the file ends too early.
        """
        self._file.seek(start)
        data = self._file.read(end - start)
        if len(data) < end - start:
            raise _too_short()
        return data

    def fields(self, message: Field) -> Iterator[Field]:
        """The fields of a message.

        Raises:
            DecodeError: it is not one.
        """
        at, end = message.start, message.end
        while at < end:
            begin = at
            tag, at = self._varint(at, end)
            value = at
            match tag & 7:
                case 0:
                    _, at = self._varint(at, end)
                case 1:
                    at += 8
                case 2:
                    size, value = self._varint(at, end)
                    at = value + size
                case 5:
                    at += 4
                case _:
                    raise DecodeError("it has a group")
            if at > end:
                raise _too_short()
            yield Field(tag >> 3, tag & 7, begin, value, at)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 64:
            place = at - self._from
            if not 0 <= place < len(self._window):
                self._window = self.read(at, min(self._size, at + _WINDOW_BYTES))
                self._from, place = at, 0
            byte = self._window[place]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise _too_short()


def require_small(data: BufferedFile) -> None:
    """Walks an ONNX model.

    Raises:
        TooMuch: it would take far more memory than its bytes.
        DecodeError: it is not a protobuf message.
    """
    _Walk(data).message(data.whole, cast("Descriptor", ModelProto.DESCRIPTOR), 0)


def merge(
    message: Message, data: BufferedFile, value: Field, number: int, take: Callable[[Field], None]
) -> None:
    """Parses the value of a field into `message`, except for its fields of this number, each of
    which is passed to `take`.
    """
    run = value.start
    for field in data.fields(value):
        if field.number == number and field.wire_type == LENGTH:
            message.MergeFromString(data.read(run, field.begin))
            take(field)
            run = field.end
    message.MergeFromString(data.read(run, value.end))


class _Walk:
    def __init__(self, data: BufferedFile) -> None:
        self._data = data
        self._fields = 0
        self._numbers = 0

    def message(self, value: Field, kind: Descriptor, depth: int) -> None:
        """The fields of one message."""
        if depth > _DEEPEST:
            raise DecodeError("nested too deeply")
        known = kind.fields_by_number
        for entry in self._data.fields(value):
            self._fields += 1
            if self._fields > MOST_FIELDS:
                raise TooMuch(f"more than {MOST_FIELDS} fields")
            field = known.get(entry.number)
            if entry.wire_type != LENGTH or field is None:
                continue
            if field.message_type is not None:
                self.message(entry, field.message_type, depth + 1)
            elif field.type not in (*_FLAT, *_AS_THEY_ARE):
                self._count(entry.size)

    def _count(self, most: int) -> None:
        """`count` bytes hold at most that many numbers."""
        self._numbers += most
        if self._numbers > MOST_NUMBERS:
            raise TooMuch(f"{megabytes(MOST_NUMBERS)} or more of variable-length numbers")


def _too_short() -> DecodeError:
    return DecodeError("it ends too early")
