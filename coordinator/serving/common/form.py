"""Multipart forms, parsed as they arrive: a few short fields, files in memory, nothing on disk.

The reader sees fields before the files that follow them (`heard`), so that a key can be checked
before a picture is kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from coordinator.serving.common.names import IMAGE_PART
from protos.errors import BadRequest

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

# A form with a picture has at most a handful of other fields.
MOST_PARTS = 16
# A key, a number, a camera's name.
LONGEST_FIELD_BYTES = 16 << 10
# The lines before a part's data: its name, a file name, a type.
LONGEST_HEAD_BYTES = 16 << 10
_CURE = f"Send one form with a file named {IMAGE_PART!r}, as `curl -F image=@file` does"

Hearing = Callable[[str, str], Awaitable[None]]


@dataclass(slots=True)
class Form:
    """Fields by name, with their last value; files by name, in order."""

    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[bytes]] = field(default_factory=dict)


async def read_form(
    request: Request, pieces: AsyncIterator[bytes], heard: Hearing | None = None
) -> Form:
    """The form in these pieces of a body; `heard` is called for each complete field.

    Raises:
        BadRequest: it is malformed, or has too many or too long fields.
    """
    parts = _Parts()
    try:
        parser = MultipartParser(_boundary(request), parts.callbacks())
        async for piece in pieces:
            parser.write(piece)
            for name, value in parts.heard():
                if heard is not None:
                    await heard(name, value)
    except FormParserError as error:
        raise _unreadable(str(error)) from error
    return parts.end()


def pictures_of(form: Form) -> list[bytes]:
    """The files named `image`.

    Raises:
        BadRequest: there is none.
    """
    files = form.files.get(IMAGE_PART, [])
    if not files:
        there = ", ".join(repr(name[:80]) for name in (*form.files, *form.fields)) or "nothing"
        raise BadRequest(
            cause=f"the form has no file named {IMAGE_PART!r}, but {there}",
            cure="Send the picture under that name, as `curl -F image=@file` does",
        )
    return files


class _Parts:
    """Collects the parser's callbacks. It does not refer to its parser: a reference cycle would
    hold pictures until garbage collection.
    """

    def __init__(self) -> None:
        self._form = Form()
        self._heard: list[tuple[str, str]] = []
        self._parts = 0
        self._head: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._name, self._value = bytearray(), bytearray()
        self._part, self._is_file = "", False
        self._data = bytearray()
        self._whole = False

    def callbacks(self) -> MultipartCallbacks:
        """The functions for the parser to call."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, a, b: self._add(self._name, data[a:b]),
            "on_header_value": lambda data, a, b: self._add(self._value, data[a:b]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_head,
            "on_part_data": self._add_data,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    def heard(self) -> list[tuple[str, str]]:
        """Fields that were completed since the last call."""
        heard, self._heard = self._heard, []
        return heard

    def end(self) -> Form:
        """The complete form."""
        if not self._whole:
            raise _unreadable("it ends early")
        return self._form

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise _unreadable(f"it has more than {MOST_PARTS} parts")
        self._head, self._head_bytes = {}, 0

    def _add(self, text: bytearray, piece: bytes) -> None:
        self._head_bytes += len(piece)
        if self._head_bytes > LONGEST_HEAD_BYTES:
            raise _unreadable("the head of a part is too long")
        text += piece

    def _end_header(self) -> None:
        self._head[bytes(self._name).lower()] = bytes(self._value)
        self._name, self._value = bytearray(), bytearray()

    def _end_head(self) -> None:
        _, options = parse_options_header(self._head.get(b"content-disposition", b""))
        if b"name" not in options:
            raise _unreadable("a part has no name")
        self._part = options[b"name"].decode("utf-8", "replace")
        # Some clients give a picture no file name.
        kind = self._head.get(b"content-type", b"text/plain").lower()
        self._is_file = (
            b"filename" in options or self._part == IMAGE_PART or not kind.startswith(b"text/plain")
        )
        self._data = bytearray()

    def _add_data(self, data: bytes, start: int, stop: int) -> None:
        if not self._is_file and len(self._data) + stop - start > LONGEST_FIELD_BYTES:
            raise _unreadable(f"the field {self._part[:80]!r} is too long")
        self._data += data[start:stop]

    def _end_part(self) -> None:
        if self._is_file:
            self._form.files.setdefault(self._part, []).append(bytes(self._data))
        else:
            value = self._data.decode("utf-8", "replace")
            self._form.fields[self._part] = value
            self._heard.append((self._part, value))
        self._data = bytearray()

    def _end(self) -> None:
        self._whole = True


def _boundary(request: Request) -> bytes:
    _, options = parse_options_header(request.headers.get("content-type", ""))
    if not options.get(b"boundary"):
        raise _unreadable("it names no boundary")
    return options[b"boundary"]


def _unreadable(reason: str) -> BadRequest:
    return BadRequest(cause=f"the multipart form cannot be read ({reason})", cure=_CURE)
