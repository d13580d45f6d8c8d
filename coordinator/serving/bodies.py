"""Request bodies: read under a limit, of a known type, and what the caller wants back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from coordinator.serving.errors import BodyTooLarge, NotAcceptable, UnsupportedMediaType
from coordinator.serving.names import IMAGE_PART
from protos.errors import BadRequest

# A form with a picture has a handful of other fields at most.
MOST_PARTS = 16
# A caller that is refused while it still sends would see a broken connection, not the answer:
# this much beyond the limit is read and thrown away first.
DRAIN_SHARE = 1.0


def media_type(request: Request) -> str:
    """The body's type without parameters, in lower case; empty if the caller names none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body.

    Raises:
        BodyTooLarge: it is longer than `limit_bytes`; at most as much was kept.
    """
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


async def image_part(request: Request, body: bytes) -> bytes:
    """The file `image` of a multipart body.

    Raises:
        BadRequest: the form cannot be read or has no such file.
    """
    parser = MultiPartParser(
        request.headers, _once(body), max_files=MOST_PARTS, max_fields=MOST_PARTS
    )
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError) as error:
        reason = getattr(error, "message", "it names no boundary")
        raise BadRequest(
            cause=f"the multipart form cannot be read ({reason})",
            cure=f"Send one form with a file named {IMAGE_PART!r}, as `curl -F image=@file` does",
        ) from error
    try:
        file = form.get(IMAGE_PART)
        if not isinstance(file, UploadFile):
            raise BadRequest(
                cause=f"the form has no file named {IMAGE_PART!r}",
                cure="Send the picture under that name, as `curl -F image=@file` does",
            )
        return await file.read()
    finally:
        await form.close()


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
