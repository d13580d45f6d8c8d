"""Requests that nobody should send: bad JSON, bad headers, wrong sizes, bombs, seeded."""

from __future__ import annotations

import functools
import gzip
import json
import random
import zlib
from dataclasses import dataclass
from enum import Enum

from tests.serving.in_place import blank, picture

KINDS = ("application/json", "application/octet-stream", "image/png", "multipart/form-data", "")
TENSOR = {"name": "image", "datatype": "FP32", "shape": [1, 3, 16, 16]}
GOOD = json.dumps({"inputs": [{**TENSOR, "data": [0.5] * 768}]}).encode()
PATHS = (
    "/v1/models/digits/infer",
    "/v1/plans/digits",
    "/v2/models/stored/infer",
    "/v2/repository/index",
    "/v1/vision/detection",
    "/v1/vision/custom/digits",
)
# Lines of a head that is no HTTP.
BROKEN_LINES = (
    "Content-Length: x",
    "Content-Length: -1",
    "Content-Length: 5",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: nonsense",
    "no colon",
    ": no name",
    "X-Zero: \0",
    "X-Fold: a\r\n b",
    "X-Long: " + "y" * 200_000,
    "Host: another",
    "Expect: the unexpected",
    "Upgrade: websocket",
)


class Sending(Enum):
    """How the bytes of one request leave."""

    KEPT = "on a connection that others use before and after"
    ALONE = "on a connection of its own"
    CRAWLS = "in small pieces with pauses, on a kept connection"
    LEAVES = "half of it, then the sender goes away"
    STALLS = "half of it, then nothing more"


@dataclass(frozen=True)
class Sent:
    """One request, and how it is sent."""

    path: str
    head: bytes
    body: bytes
    how: Sending = Sending.ALONE


# Made once: compressing 36 megapixels for each request would cost more than all the answers.
@functools.cache
def _many_pixels() -> bytes:
    return blank(6_000, 6_000)


@functools.cache
def _picture() -> bytes:
    return picture()


@functools.cache
def _bomb() -> bytes:
    return gzip.compress(bytes(200_000_000))


def mutated(rng: random.Random, body: bytes) -> bytes:
    data = bytearray(body)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + rng.randrange(40)] = b""
            case 1:
                data[at:at] = rng.randbytes(rng.randrange(40))
            case 2:
                data[at : at + 1] = rng.choice(
                    [b"[", b"}", b'"', b"-", b"9" * 30, b"\xff", b"null"]
                )
            case 3:
                del data[at:]
    return bytes(data)


def _form(rng: random.Random) -> tuple[bytes, str]:
    boundary = "x" * rng.randrange(1, 5)
    part = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="i"\r\n\r\n'
    body = part.encode() + _picture() + f"\r\n--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"


def _deep(rng: random.Random) -> bytes:
    return b"[" * rng.choice([100, 100_000]) + b"]"


def _coded(rng: random.Random, body: bytes) -> tuple[bytes, str]:
    coding = rng.choice(["gzip", "deflate", "br", "gzip, gzip", "nonsense"])
    if rng.random() < 0.05:
        return _bomb(), coding
    if rng.random() < 0.5:
        return (gzip if "gzip" in coding else zlib).compress(body), coding
    return body, coding


def _how(rng: random.Random) -> Sending:
    kinds = (Sending.KEPT, Sending.ALONE, Sending.CRAWLS, Sending.LEAVES, Sending.STALLS)
    return rng.choices(kinds, (0.64, 0.32, 0.02, 0.018, 0.002))[0]


def made(rng: random.Random) -> Sent:
    """The next request; nine of ten are wrong somewhere."""
    unknown = (
        f"/v2/models/{rng.randbytes(4).hex()}/infer",
        f"/v1/models/%{rng.randrange(256):02x}/infer",
    )
    path = rng.choice(PATHS + unknown)
    headers: dict[str, str] = {}
    body, kind = rng.choice(
        [
            (GOOD, "application/json"),
            (_picture(), "image/png"),
            _form(rng),
            (b"", ""),
            (_deep(rng), "application/json"),
            (_many_pixels(), "image/png"),
            (rng.randbytes(rng.randrange(5_000)), rng.choice(KINDS)),
        ]
    )
    if rng.random() < 0.8:
        body = mutated(rng, body)
    headers["Content-Type"] = kind if rng.random() < 0.8 else rng.choice(KINDS)
    if rng.random() < 0.3:
        length = rng.choice(["0", "7", "-1", "1e3", "99999999999999999999", "\u00b2", "x", " 5"])
        headers["Inference-Header-Content-Length"] = length
    if rng.random() < 0.2:
        body, headers["Content-Encoding"] = _coded(rng, body)
    if rng.random() < 0.2:
        headers["Accept"] = rng.choice(["text/html", "image/png;q=x", "*/*;q=0", ",,;", "a/b;q=-1"])
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    how = _how(rng)
    if rng.random() < 0.03:
        how = Sending.ALONE
        lines.append(rng.choice(BROKEN_LINES))
    if how is Sending.ALONE:
        lines.append("Connection: close")
    return Sent(path, "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n", body, how)
