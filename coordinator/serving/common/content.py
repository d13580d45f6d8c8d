"""The content of bodies and answers (RFC 9110): media types (8.3), the one that Accept prefers
(12.5.1), and content codings (8.4.1): gzip and deflate, decompressed as they arrive.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from operator import itemgetter

from fastapi import Request

from coordinator.serving.common.errors import NotAcceptable, UnsupportedMediaType
from protos.errors import BadRequest

# The content coding of a body that is not compressed.
PLAIN = "identity"
# Concatenated members, as RFC 1952 allows; each costs a copy of the data after it.
MOST_MEMBERS = 16
_PIECE_BYTES = 1 << 20
# zlib's numbers for the containers of these codings.
_CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
# A zlib header is two bytes long.
_HEADER_BYTES = 2


def media_type(request: Request) -> str:
    """The body's media type without parameters, in lower case; empty if there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def chosen_type(request: Request, offered: Sequence[str]) -> str:
    """The type among `offered` (the first is the default) that the Accept header prefers.

    Raises:
        NotAcceptable: it accepts none of them.
    """
    header = request.headers.get("accept", "") or "*/*"
    ranges = map(_with_quality, header.split(","))
    for wanted, quality in sorted(ranges, key=itemgetter(1), reverse=True):
        for kind in offered:
            if quality > 0 and wanted in ("*/*", kind, f"{kind.partition('/')[0]}/*"):
                return kind
    raise NotAcceptable(
        cause=f"this answer cannot be given as {header}",
        cure=f"Accept one of {', '.join(offered)}",
    )


def wrong_type(sent: str, takes: Sequence[str]) -> UnsupportedMediaType:
    """The error for a body of the type `sent`."""
    hint = ""
    if sent == "application/x-www-form-urlencoded":
        hint = "; with curl, add -H 'Content-Type: image/jpeg' or use -F image=@file"
    return UnsupportedMediaType(
        cause=f"a body of the type {sent or '(none)'} cannot be used here",
        cure=f"Send {' or '.join(takes)}{hint}",
    )


def _with_quality(item: str) -> tuple[str, float]:
    """A media range and its q value."""
    wanted, *parameters = (part.strip().lower() for part in item.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return wanted, float(parameter[2:])
            except ValueError:
                return wanted, 0.0
    return wanted, 1.0


class Unpacker:
    """Decompresses one body.

    Raises:
        UnsupportedMediaType: the coding is not supported.
    """

    def __init__(self, coding: str) -> None:
        if coding not in _CODINGS:
            raise UnsupportedMediaType(
                cause=f"the content coding {coding!r} is not supported", cure="Send gzip, or none"
            )
        self._coding = coding
        self._member: zlib._Decompress | None = None
        self._members = 0
        # The start of a member whose format is not known yet.
        self._start = b""

    def unpack(self, piece: bytes) -> Iterator[bytes]:
        """The content of the next piece, in non-empty pieces of at most 1 MB.

        Raises:
            BadRequest: the data is broken.
        """
        rest = self._start + piece
        self._start = b""
        try:
            while rest:
                if self._member is None:
                    if len(rest) < _HEADER_BYTES:
                        self._start = rest
                        return
                    self._member = self._begun(rest)
                if unpacked := self._member.decompress(rest, _PIECE_BYTES):
                    yield unpacked
                if self._member.eof:
                    rest, self._member = self._member.unused_data, None
                else:
                    rest = self._member.unconsumed_tail
        except zlib.error as error:
            raise self._broken(str(error)) from error

    def end(self) -> None:
        """Checks the end of the body.

        Raises:
            BadRequest: the data is incomplete.
        """
        if self._member is not None or self._start:
            raise self._broken("it ends early")

    def _begun(self, start: bytes) -> zlib._Decompress:
        self._members += 1
        if self._members > MOST_MEMBERS:
            raise self._broken(f"it has more than {MOST_MEMBERS} members")
        # Some clients send deflate without zlib's header.
        raw = self._coding == "deflate" and not _is_zlib(start)
        return zlib.decompressobj(-zlib.MAX_WBITS if raw else _CODINGS[self._coding])

    def _broken(self, reason: str) -> BadRequest:
        return BadRequest(
            cause=f"the body is not what its Content-Encoding says ({reason})",
            cure=f"Send all of it as {self._coding}, or leave that header out",
        )


def _is_zlib(data: bytes) -> bool:
    """Whether this is a zlib header: method 8 and a valid checksum (RFC 1950, 2.2)."""
    return data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
