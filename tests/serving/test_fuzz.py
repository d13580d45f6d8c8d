"""Bad input of every kind on every surface: each answers in its own shape, and stays as it was."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass

import psutil
import pytest

from tests.serving.hostile import GOOD, Sending, Sent, made
from tests.serving.processes import Service

# Pools, threads and sessions come to their size within some thousand requests: 90 MB here. After
# that the heap follows how many large bodies happen to be unpacked at one moment.
SETTLING, SETTLED_BYTES = 6_000, 48 << 20
UNSETTLED_BYTES = 96 << 20
# Connections that are still being closed.
MORE_FILES = 16
CONNECTIONS = 8
PIECES, PAUSE_S = 10, 0.02


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


@dataclass
class Line:
    """A client's connection, opened again when the other side has closed it."""

    host: str
    port: int
    ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def exchange(self, sent: Sent) -> tuple[int, bytes, bytes] | None:
        """Status, head and body of the answer; nothing if there was none."""
        if self.ends is None or sent.how is Sending.ALONE:
            self.close()
            self.ends = await asyncio.open_connection(self.host, self.port)
        reader, writer = self.ends
        try:
            await self._send(writer, sent)
            if sent.how is Sending.LEAVES:
                self.close()
                return None
            async with asyncio.timeout(60):
                return await self._answer(reader)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()  # refused and closed before all of the body had been sent
            return None

    async def _send(self, writer: asyncio.StreamWriter, sent: Sent) -> None:
        writer.write(sent.head)
        match sent.how:
            case Sending.LEAVES | Sending.STALLS:
                writer.write(sent.body[: len(sent.body) // 2])
            case Sending.CRAWLS:
                step = len(sent.body) // PIECES + 1
                for start in range(0, len(sent.body), step):
                    writer.write(sent.body[start : start + step])
                    await writer.drain()
                    await asyncio.sleep(PAUSE_S)
            case Sending.KEPT | Sending.ALONE:
                writer.write(sent.body)
        await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        if b"content-length" in fields:
            body = await reader.readexactly(int(fields[b"content-length"]))
        else:
            assert fields[b"connection"] == b"close", head
            body = await reader.read()
        if fields.get(b"connection") == b"close":
            self.close()
        return int(head.split()[1]), fields.get(b"content-type", b""), body

    def close(self) -> None:
        if self.ends is not None:
            self.ends[1].close()
            self.ends = None


async def attack(service: Service, count: int, seed: int) -> Counter[int]:
    rng, statuses = random.Random(seed), Counter[int]()
    host, port = service.host_port.split(":")
    left = iter(range(count))

    async def one() -> None:
        line = Line(host, int(port))
        for _ in left:
            sent = made(rng)
            answer = await line.exchange(sent)
            if answer is None:
                statuses[0] += 1
                continue
            status, kind, body = answer
            statuses[status] += 1
            if status >= 400 and not kind.startswith(b"text/plain"):
                shaped(sent.path, body)
            assert status not in (500, 502) or b"no object detector" in body, (sent, body[:500])
        line.close()

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    return statuses


@dataclass(frozen=True)
class Held:
    """What the coordinator and its workers hold: memory, and the coordinator's open files."""

    coordinator_bytes: int
    workers_bytes: int
    files: int

    @classmethod
    def by(cls, service: Service) -> Held:
        coordinator = psutil.Process(service.coordinator.process.pid)
        workers = (psutil.Process(each.process.pid) for each in service.workers)
        return cls(
            coordinator.memory_info().rss,
            sum(each.memory_info().rss for each in workers),
            coordinator.num_fds(),
        )


async def bad_input_changes_nothing(
    service: Service, count: int, before_count: int, most_bytes: int
) -> None:
    await attack(service, before_count, seed=1)
    before = Held.by(service)
    statuses = await attack(service, count, seed=2)
    after = Held.by(service)
    print(f"{before} before, {after} after; {dict(sorted(statuses.items()))}")
    assert statuses[400] > count // 10, statuses
    assert statuses[0] < count // 10, statuses
    assert after.coordinator_bytes - before.coordinator_bytes < most_bytes, statuses
    assert after.workers_bytes - before.workers_bytes < most_bytes, statuses
    assert after.files - before.files < MORE_FILES
    assert service.get("/readyz") == {"status": "ready"}
    assert all(row["state"] == "ready" for row in service.get("/v1/devices")["devices"])
    head = "POST /v2/models/stored/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += f"Content-Length: {len(GOOD)}\r\n"
    host, port = service.host_port.split(":")
    answer = await Line(host, int(port)).exchange(
        Sent("/v2", f"{head}Connection: close\r\n\r\n".encode(), GOOD)
    )
    assert answer
    assert answer[0] == 200


@pytest.mark.needs_room("coordinator/serving/oip")
@pytest.mark.needs_room("coordinator/serving/deepstack")
async def test_service_survives_two_hundred_bad_requests(service: Service) -> None:
    await bad_input_changes_nothing(service, 200, 80, UNSETTLED_BYTES)


@pytest.mark.slow
async def test_service_survives_ten_thousand_bad_requests(service: Service) -> None:
    await bad_input_changes_nothing(service, 10_000, SETTLING, SETTLED_BYTES)
