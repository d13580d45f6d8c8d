"""Bad input of every kind on every surface: each answers in its own shape, and stays as it was."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
import zlib
from dataclasses import dataclass

import numpy as np
import psutil
import pytest

from coordinator.serving.bodies import decoded
from coordinator.serving.errors import BodyTooLarge
from protos.errors import BadRequest
from tests.serving.in_place import blank, picture
from tests.serving.processes import Service

# A coordinator that leaked one in ten of these bodies would grow by far more.
GROWTH_BYTES = 96 << 20
KINDS = ("application/json", "application/octet-stream", "image/png", "multipart/form-data", "")
TENSOR = {"name": "image", "datatype": "FP32", "shape": [1, 3, 16, 16]}
BOMB = gzip.compress(bytes(200_000_000))
GOOD = json.dumps({"inputs": [{**TENSOR, "data": [0.5] * 768}]}).encode()


@dataclass(frozen=True)
class Sent:
    """One request as bytes on a connection, and what it may be answered with."""

    path: str
    raw: bytes
    hangs: bool = False


def shaped(path: str, body: bytes) -> None:
    """The error has the shape of its surface."""
    document = json.loads(body)
    if path.startswith("/v2"):
        assert set(document) == {"error"}, document
        assert isinstance(document["error"], str)
    elif path.startswith(("/v1/vision", "/v1/status")):
        assert document["success"] is False, document
    else:
        assert set(document["error"]) == {"code", "message", "cause", "cure"}, document


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


def form(rng: random.Random) -> tuple[bytes, str]:
    boundary = "x" * rng.randrange(1, 5)
    part = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="i"\r\n\r\n'
    body = part.encode() + picture() + f"\r\n--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"


def deep(rng: random.Random) -> bytes:
    return b"[" * rng.choice([100, 100_000]) + b"]"


def made(rng: random.Random) -> Sent:
    path = rng.choice(
        [
            "/v1/models/digits/infer",
            "/v1/plans/digits",
            "/v2/models/stored/infer",
            "/v2/repository/index",
            "/v1/vision/detection",
            "/v1/vision/custom/digits",
            f"/v2/models/{rng.randbytes(4).hex()}/infer",
            f"/v1/models/%{rng.randrange(256):02x}/infer",
        ]
    )
    headers: dict[str, str] = {}
    body, kind = rng.choice(
        [
            (GOOD, "application/json"),
            (picture(), "image/png"),
            form(rng),
            (b"", ""),
            (deep(rng), "application/json"),
            (blank(6_000, 6_000), "image/png"),
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
        coding = rng.choice(["gzip", "deflate", "br", "gzip, gzip", "nonsense"])
        headers["Content-Encoding"] = coding
        if rng.random() < 0.5:
            body = gzip.compress(body) if "gzip" in coding else zlib.compress(body)
        if rng.random() < 0.05:
            body = BOMB
    if rng.random() < 0.2:
        headers["Accept"] = rng.choice(["text/html", "image/png;q=x", "*/*;q=0", ",,;", "a/b;q=-1"])
    length = len(body)
    hangs = rng.random() < 0.02
    if hangs:
        length += rng.randrange(1, 5_000)
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return Sent(path, "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body, hangs)


async def exchange(host: str, port: int, sent: Sent) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(sent.raw)
        await writer.drain()
        if sent.hangs:
            return b""  # goes away in the middle of its body
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""  # the answer came before all of the body had been sent
    finally:
        writer.close()


async def attack(service: Service, count: int, seed: int) -> dict[int, int]:
    rng, statuses = random.Random(seed), dict[int, int]()
    host, port = service.host_port.split(":")
    waiting = [made(rng) for _ in range(count)]

    async def one() -> None:
        while waiting:
            sent = waiting.pop()
            answer = await exchange(host, int(port), sent)
            if not answer:
                continue
            head, _, body = answer.partition(b"\r\n\r\n")
            status = int(head.split()[1])
            statuses[status] = statuses.get(status, 0) + 1
            if status >= 400 and not re.search(rb"\r\ncontent-type: text/plain", head, re.I):
                shaped(sent.path, body)
            assert status not in (500, 502) or b"no object detector" in body, (sent, answer[:500])

    await asyncio.gather(*(one() for _ in range(8)))
    return statuses


async def bad_input_changes_nothing(service: Service, count: int) -> None:
    process = psutil.Process(service.coordinator.process.pid)
    await attack(service, 80, seed=1)  # caches and buffers come to their size
    before = process.memory_info().rss
    statuses = await attack(service, count, seed=2)
    assert statuses.get(400, 0) > count // 10, statuses
    assert sum(statuses.values()) > count * 0.9, statuses
    assert process.memory_info().rss - before < GROWTH_BYTES, statuses
    assert service.get("/readyz") == {"status": "ready"}
    assert all(row["state"] == "ready" for row in service.get("/v1/devices")["devices"])
    text = "POST /v2/models/stored/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    raw = text.encode() + f"Content-Length: {len(GOOD)}\r\n\r\n".encode() + GOOD
    host, port = service.host_port.split(":")
    answer = await exchange(host, int(port), Sent("/v2", raw))
    assert b" 200 " in answer.split(b"\r\n")[0]


async def test_two_hundred(service: Service) -> None:
    await bad_input_changes_nothing(service, 200)


@pytest.mark.slow
async def test_ten_thousand(service: Service) -> None:
    await bad_input_changes_nothing(service, 10_000)


def test_no_more_is_unpacked_than_allowed() -> None:
    limit = 1_000_000
    for coding, bomb in (
        ("gzip", gzip.compress(bytes(300_000_000), 9)),
        ("gzip", gzip.compress(b"x" * limit) * 3),
        ("deflate", zlib.compress(bytes(300_000_000), 9)),
        ("deflate", zlib.compress(bytes(300_000_000), 9)[2:-4]),
    ):
        with pytest.raises(BodyTooLarge):
            decoded(bomb, coding, limit)
    text = np.random.default_rng(0).bytes(10_000)
    assert decoded(gzip.compress(text) + gzip.compress(text), "gzip", limit) == text + text
    assert decoded(zlib.compress(text), "deflate", limit) == text
    assert decoded(zlib.compress(text)[2:-4], "deflate", limit) == text
    for coding, broken in (("gzip", gzip.compress(text)[:-9]), ("gzip", b"no"), ("deflate", b"\0")):
        with pytest.raises(BadRequest, match="Content-Encoding"):
            decoded(broken, coding, limit)
