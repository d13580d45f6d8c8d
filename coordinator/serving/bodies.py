"""Request bodies: read under a limit, of a known type, and what the caller wants back."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Sequence

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from coordinator.serving.errors import BodyTooLarge, NotAcceptable, UnsupportedMediaType
from coordinator.serving.names import IMAGE_PART
from protos.errors import BadRequest

# A form with a picture has a handful of other fields at most.
MOST_PARTS = 16
# A caller that is refused while it still sends would see a broken connection, not the answer:
# this much beyond the limit is read and thrown away first.
DRAIN_SHARE = 1.0
# What zlib calls the containers of these content codings.
_CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def media_type(request: Request) -> str:
    """The body's type without parameters, in lower case; empty if the caller names none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body, without its content coding (gzip, deflate).

    Raises:
        BodyTooLarge: it is longer than `limit_bytes`; at most as much was kept.
        UnsupportedMediaType, BadRequest: of another coding, or broken.
    """
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    body = await _read_coded(request, limit_bytes)
    if coding in ("", "identity"):
        return body
    if coding not in _CODINGS:
        raise UnsupportedMediaType(
            cause=f"a body of the coding {coding!r} cannot be read", cure="Send gzip, or none"
        )
    return await asyncio.to_thread(decoded, body, coding, limit_bytes)


def decoded(body: bytes, coding: str, limit_bytes: int) -> bytes:
    """A body that came as gzip or deflate; never more than `limit_bytes` are unpacked.

    Raises:
        BodyTooLarge, BadRequest: it would be longer, or is broken.
    """
    kept, rest = bytearray(), body
    try:
        while rest:
            # Some senders of deflate leave zlib's header out.
            raw = coding == "deflate" and not _is_zlib(rest)
            unpacker = zlib.decompressobj(-zlib.MAX_WBITS if raw else _CODINGS[coding])
            kept += unpacker.decompress(rest, limit_bytes + 1 - len(kept))
            if len(kept) > limit_bytes:
                raise _too_large(limit_bytes)
            if not unpacker.eof:
                raise zlib.error("it ends early")
            rest = unpacker.unused_data
    except zlib.error as error:
        raise BadRequest(
            cause=f"the body is not what its Content-Encoding says ({error})",
            cure=f"Send all of it as {coding}, or leave that header out",
        ) from error
    return bytes(kept)


def _is_zlib(data: bytes) -> bool:
    """A zlib header: method 8 and a checksum of two bytes (RFC 1950, 2.2)."""
    return len(data) > 1 and data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0


async def _read_coded(request: Request, limit_bytes: int) -> bytes:
    patience = int(limit_bytes * (1 + DRAIN_SHARE))
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > patience:
        raise _too_large(limit_bytes)
    kept, seen = bytearray(), 0
    async for chunk in request.stream():
        seen += len(chunk)
        if seen > patience:
            break
        if seen <= limit_bytes:
            kept += chunk
    if seen > limit_bytes:
        raise _too_large(limit_bytes)
    return bytes(kept)


async def image_parts(request: Request, body: bytes) -> list[bytes]:
    """The files `image` of a multipart body, at least one.

    Raises:
        BadRequest: the form cannot be read or has no such file.
    """
    form = await read_form(request, body)
    try:
        files = [each for each in form.getlist(IMAGE_PART) if isinstance(each, UploadFile)]
        if not files:
            raise BadRequest(
                cause=f"the form has no file named {IMAGE_PART!r}",
                cure="Send the picture under that name, as `curl -F image=@file` does",
            )
        return [await file.read() for file in files]
    finally:
        await form.close()


async def read_form(request: Request, body: bytes) -> FormData:
    """A multipart body's fields and files; the caller closes it.

    Raises:
        BadRequest: it cannot be read.
    """
    parser = MultiPartParser(
        request.headers, _once(body), max_files=MOST_PARTS, max_fields=MOST_PARTS
    )
    try:
        return await parser.parse()
    except (MultiPartException, KeyError) as error:
        reason = getattr(error, "message", "it names no boundary")
        raise BadRequest(
            cause=f"the multipart form cannot be read ({reason})",
            cure=f"Send one form with a file named {IMAGE_PART!r}, as `curl -F image=@file` does",
        ) from error


def chosen_type(request: Request, offered: Sequence[str]) -> str:
    """The type of `offered` (first: the default) that the Accept header likes best.

    Raises:
        NotAcceptable: none of them.
    """
    header = request.headers.get("accept", "") or "*/*"
    ranges = sorted((_weighed(item) for item in header.split(",")), key=lambda pair: -pair[1])
    for wanted, quality in ranges:
        for each in offered:
            if quality > 0 and _covers(wanted, each):
                return each
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


def _weighed(item: str) -> tuple[str, float]:
    """A media range and its q value."""
    wanted, *parameters = (part.strip().lower() for part in item.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return wanted, float(parameter[2:])
            except ValueError:
                return wanted, 0.0
    return wanted, 1.0


def _covers(wanted: str, offered: str) -> bool:
    return wanted in ("*/*", offered, f"{offered.partition('/')[0]}/*")


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        cause=f"the body is longer than {limit_bytes} bytes",
        cure="Send a smaller picture, or raise the coordinator's setting max_body_bytes",
    )


async def _once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body
