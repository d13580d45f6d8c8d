"""Request bodies, read under limits, and the types of bodies and answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from fastapi import Request

from coordinator.serving.common.codings import PLAIN, Unpacker, content_coding
from coordinator.serving.common.errors import BodyTooLarge, NotAcceptable, UnsupportedMediaType
from coordinator.serving.common.intake import BODY, Body, BodyKind
from protos.errors import ImbrexError

# A client that is refused while it sends would see a broken connection instead of the answer: this
# much beyond the limit is read and discarded first.
DRAIN_SHARE = 1.0


def media_type(request: Request) -> str:
    """The body's media type without parameters, in lower case; empty if there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def json_too_large(limit_bytes: int) -> BodyTooLarge:
    """The error for too much JSON; its limit is low because text grows tenfold in memory."""
    return BodyTooLarge(
        cause=f"the request's JSON is longer than {limit_bytes} bytes",
        cure="Send tensors as bytes (.npz, or the binary data extension), or raise the "
        "coordinator's setting max_json_bytes",
    )


async def read_body(request: Request) -> bytes:
    """The whole body, without its content coding (gzip, deflate).

    Raises:
        BodyTooLarge: it is longer than the rule of the route allows; at most as much was kept.
        UnsupportedMediaType, BadRequest: the coding is not supported, or the body is broken.
    """
    kept = bytearray()
    async for piece in body_pieces(request):
        kept += piece
    return bytes(kept)


async def body_pieces(request: Request) -> AsyncIterator[bytes]:
    """The body in pieces, as it arrives, without its content coding.

    Raises:
        BodyTooLarge, UnsupportedMediaType, BadRequest: as `read_body`.
    """
    body: Body = request.scope[BODY]
    assert body.kind is not BodyKind.NONE, "the rule of a route says what it reads"
    coding = content_coding(request.headers)
    pieces = _pieces(request, body)
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
                if unpacked_bytes > body.limit_bytes:
                    raise _too_large(body)
                yield piece
        unpacker.end()
    except ImbrexError:
        async for _ in pieces:
            pass  # a client that still sends would see a broken connection instead of the answer
        raise
    body.settle(unpacked_bytes)


async def _pieces(request: Request, body: Body) -> AsyncIterator[bytes]:
    """The body as it was sent, up to the limit; then an error."""
    limit_bytes = body.limit_bytes
    patience = int(limit_bytes * (1 + DRAIN_SHARE))
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > patience:
        raise _too_large(body)
    seen = 0
    async for piece in request.stream():
        seen += len(piece)
        if seen > patience:
            break
        if seen <= limit_bytes:
            yield piece
    if seen > limit_bytes:
        raise _too_large(body)


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


def _too_large(body: Body) -> BodyTooLarge:
    if body.kind is BodyKind.JSON:
        return json_too_large(body.limit_bytes)
    return BodyTooLarge(
        cause=f"the body is longer than {body.limit_bytes} bytes",
        cure="Send a smaller picture, or raise the coordinator's setting max_body_bytes",
    )
