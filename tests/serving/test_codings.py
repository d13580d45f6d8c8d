"""Content codings: what was packed comes out again, a little at a time, and never too much."""

import gzip
import zlib
from typing import Any

import numpy as np
import pytest

from coordinator.serving.common.body import Body, BodyKind, Intake
from coordinator.serving.common.errors import BodyTooLarge, UnsupportedMediaType
from protos.errors import BadRequest

LIMIT_BYTES = 1_000_000
TEXT = np.random.default_rng(0).bytes(3_000)


async def unpacked(packed: bytes, coding: str, piece_bytes: int = 1 << 16) -> bytes:
    """`packed` as a request's body that comes in pieces."""
    pieces = [packed[at : at + piece_bytes] for at in range(0, len(packed), piece_bytes)]
    taken = 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        return {
            "type": "http.request",
            "body": pieces[taken - 1] if pieces else b"",
            "more_body": taken < len(pieces),
        }

    headers = [(b"content-encoding", coding.encode()), (b"content-length", b"%d" % len(packed))]
    intake = Intake(None, LIMIT_BYTES, 0.0)  # type: ignore[arg-type]
    body = Body(intake, {"type": "http", "headers": headers}, receive)  # type: ignore[arg-type]
    body.kind, body.limit_bytes = BodyKind.DATA, LIMIT_BYTES
    try:
        whole = await body.read()
    finally:
        assert taken >= len(pieces), "whoever still sends would see a broken connection"
    assert intake.large.held_bytes == len(whole)
    return whole


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 16])
async def test_packed_body_comes_out_again(piece_bytes: int) -> None:
    assert await unpacked(gzip.compress(TEXT), "gzip", piece_bytes) == TEXT
    assert await unpacked(gzip.compress(TEXT) * 2, "gzip", piece_bytes) == TEXT * 2
    assert await unpacked(gzip.compress(b"a") * 16, "x-gzip", piece_bytes) == b"a" * 16
    assert await unpacked(zlib.compress(TEXT), "deflate", piece_bytes) == TEXT
    # Without zlib's header, as some senders of deflate have it.
    assert await unpacked(zlib.compress(TEXT)[2:-4], "deflate", piece_bytes) == TEXT


@pytest.mark.parametrize(
    ("bomb", "coding"),
    [
        (gzip.compress(bytes(30_000_000), 9), "gzip"),
        (gzip.compress(b"x" * LIMIT_BYTES) * 3, "gzip"),
        (zlib.compress(bytes(30_000_000), 9), "deflate"),
        (zlib.compress(bytes(30_000_000), 9)[2:-4], "deflate"),
    ],
    ids=("gzip", "members", "deflate", "raw"),
)
async def test_no_more_is_unpacked_than_allowed(bomb: bytes, coding: str) -> None:
    with pytest.raises(BodyTooLarge):
        await unpacked(bomb, coding)


@pytest.mark.parametrize(
    ("broken", "coding"),
    [
        (gzip.compress(TEXT)[:-9], "gzip"),
        (b"no", "gzip"),
        (b"\x1f", "gzip"),
        (b"\0", "deflate"),
        (gzip.compress(b"") * 17, "gzip"),
        (gzip.compress(TEXT)[:1500] + bytes(200_000), "gzip"),
    ],
)
async def test_broken_coding_is_refused(broken: bytes, coding: str) -> None:
    with pytest.raises(BadRequest, match="Content-Encoding"):
        await unpacked(broken, coding)


async def test_an_unknown_coding_is_refused() -> None:
    with pytest.raises(UnsupportedMediaType, match="'br'"):
        await unpacked(b"anything", "br")
