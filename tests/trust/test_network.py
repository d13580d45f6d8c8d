"""What the home's network sees and can do: a relay between two daemons keeps or changes bytes."""

import asyncio
import contextlib

import pytest

from protos.errors import LostWorker
from protos.rpc.channels import Caller
from protos.rpc.worker_client import WorkerClient
from tests.trust.support import KITCHEN, member
from tests.worker.support import in_process
from tests.worker.tile import computes


class Relay:
    """Passes bytes on to `address`, keeps them, and changes one of each piece if told to."""

    def __init__(self, address):
        self._there = address.rpartition(":")
        self.passed = bytearray()
        self.spoils = False

    async def serve(self, reader, writer):
        host, _, port = self._there
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.passed += data
                writer.write(data[:-1] + bytes([data[-1] ^ self.spoils]))
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def relayed(address):
    """(where to call, the relay)"""
    relay = Relay(address)
    async with await asyncio.start_server(relay.serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}", relay


@pytest.mark.parametrize("with_tls", [True, False])
async def test_the_network_sees_no_tensor(trust, tmp_path, with_tls):
    """Without TLS it does: this would find it."""
    state, own = tmp_path / "kitchen", trust.caller if with_tls else Caller("host")
    started = member(trust.certified, state, KITCHEN) if with_tls else in_process(state)
    async with started as running, relayed(running.address) as (address, relay):
        async with WorkerClient(address, own, running.id) as client:
            await client.hello("1")
            tensors = await computes(client)
        seen = [
            row.tobytes() in relay.passed for each in tensors for row in each[0].reshape(-1, 10)
        ]
    assert len(relay.passed) > sum(each.nbytes for each in tensors)
    assert any(seen) != with_tls


async def test_message_changed_on_its_way_is_not_taken(trust, tmp_path):
    async with (
        member(trust.certified, tmp_path / "kitchen", KITCHEN) as running,
        relayed(running.address) as (address, relay),
        WorkerClient(address, trust.caller, running.id) as client,
    ):
        await client.hello("1")
        relay.spoils = True
        with pytest.raises(LostWorker):
            await client.hello("1")
