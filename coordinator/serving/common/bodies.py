"""Request bodies, read under limits, and the types of bodies and answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from fastapi import Request

from coordinator.serving.common.codings import PLAIN, Unpacker, content_coding
from coordinator.serving.common.errors import BodyTooLarge, NotAcceptable, UnsupportedMediaType
from coordinator.serving.common.intake import BODY, Body
from coordinator.settings import CoordinatorSettings
from protos.errors import ImbrexError

# A client that is refused while it sends would see a broken connection instead of the answer: this
# much beyond the limit is read and discarded first.
DRAIN_SHARE = 1.0


def media_type(request: Request) -> str:
    """The body's media type without parameters, in lower case; empty if there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_json_body(request: Request, settings: CoordinatorSettings) -> bytes:
    """A body that may only be JSON.

    Raises:
        BodyTooLarge, UnsupportedMediaType, BadRequest: as `read_body`, with a limit of its own.
    """
    limit_bytes = min(settings.max_json_bytes, settings.max_body_bytes)
    try:
        return await read_body(request, limit_bytes)
    except BodyTooLarge:
        raise json_too_large(limit_bytes) from None


def json_too_large(limit_bytes: int) -> BodyTooLarge:
    """The error for too much JSON; its limit is low because text grows tenfold in memory."""
    return BodyTooLarge(
        cause=f"the request's JSON is longer than {limit_bytes} bytes",
        cure="Send tensors as bytes (.npz, or the binary data extension), or raise the "
        "coordinator's setting max_json_bytes",
    )


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body, without its content coding (gzip, deflate).

    Raises:
        BodyTooLarge: it is longer than `limit_bytes`; at most as much was kept.
        UnsupportedMediaType, BadRequest: the coding is not supported, or the body is broken.
    """
    kept = bytearray()
    async for piece in body_pieces(request, limit_bytes):
        kept += piece
    return bytes(kept)


async def body_pieces(request: Request, limit_bytes: int) -> AsyncIterator[bytes]:
    """The body in pieces, as it arrives, without its content coding.

    Raises:
        BodyTooLarge, UnsupportedMediaType, BadRequest: as `read_body`.
    """
    coding = content_coding(request.headers)
    pieces = _pieces(request, limit_bytes)
    if coding == PLAIN:
        async for piece in pieces:
            yield piece
        return
    unpacked_bytes = 0
    try:
        unpacker = Unpacker(coding)
        async for packed in pieces:
            made = unpacker.unpack(packed)
            while piece := await asyncio.to_thread(next, made, b""):
                unpacked_bytes += len(piece)
                if unpacked_bytes > limit_bytes:
                    raise _too_large(limit_bytes)
                yield piece
        unpacker.end()
    except ImbrexError:
        async for _ in pieces:
            pass  # a client that still sends would see a broken connection instead of the answer
        raise
    body: Body = request.scope[BODY]
    body.settle(unpacked_bytes)


async def _pieces(request: Request, limit_bytes: int) -> AsyncIterator[bytes]:
    """The body as it was sent, up to the limit; then an error."""
    patience = int(limit_bytes * (1 + DRAIN_SHARE))
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > patience:
        raise _too_large(limit_bytes)
    seen = 0
    async for piece in request.stream():
        seen += len(piece)
        if seen > patience:
            break
        if seen <= limit_bytes:
            yield piece
    if seen > limit_bytes:
        raise _too_large(limit_bytes)


def chosen_type(request: Request, offered: Sequence[str]) -> str:
    """The type among `offered` (the first is the default) that the Accept header prefers.

    Raises:
        NotAcceptable: it accepts none of them.
    """
    header = request.headers.get("accept", "") or "*/*"
    ranges = sorted((_with_quality(item) for item in header.split(",")), key=lambda pair: -pair[1])
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


def _covers(wanted: str, offered: str) -> bool:
    return wanted in ("*/*", offered, f"{offered.partition('/')[0]}/*")


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        cause=f"the body is longer than {limit_bytes} bytes",
        cure="Send a smaller picture, or raise the coordinator's setting max_body_bytes",
    )
