"""Pools around real workers, and waiting for what they should notice."""

import asyncio
import contextlib
import uuid

from coordinator.devices.announcements import Announcements, DevicesChanged
from coordinator.devices.connection import Connection
from coordinator.devices.pool import Pool
from coordinator.trust.trust import Trust
from protos.wire.facts import DeviceId
from tests.waiting import until
from tests.worker.support import Running, process

LOOPBACK = "127.0.0.1"


def unique_cluster():
    """A cluster name that no test beside this one has."""
    return f"test-{uuid.uuid4().hex[:10]}"


class Watched:
    """A pool, and everything that it announced or received."""

    def __init__(self, trust=None):
        self.changes = []
        self.items = []
        announcements = Announcements()
        announcements.on(DevicesChanged, lambda news: self.changes.append(news.cause))
        self.pool = Pool(trust or Trust(), announcements)

    def received(self, *item):
        self.items.append(item)
        return True

    def connection(self, running: Running) -> Connection:
        return self.pool.connection(DeviceId(running.id))

    def has(self, running: Running) -> bool:
        return running.id in self.pool.ready()

    def peer(self, address):
        return next(peer for peer in self.pool.peers if peer.address == address)

    async def joined(self, *workers: Running):
        await until(lambda: all(self.has(each) for each in workers))


@contextlib.asynccontextmanager
async def connected(*addresses):
    """Connections that live as those of a pool."""
    nobody = Watched()
    connections = [
        await Connection.open(address, Trust(), nobody, Announcements()) for address in addresses
    ]
    runs = [asyncio.create_task(each.run()) for each in connections]
    try:
        yield connections
    finally:
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        for each in connections:
            await each.close()


@contextlib.asynccontextmanager
async def watched_pool(*listed, cluster="", trust=None):
    watched = Watched(trust)
    await watched.pool.start(watched, listed, cluster, [LOOPBACK])
    try:
        yield watched
    finally:
        await watched.pool.stop()


@contextlib.asynccontextmanager
async def worker_process(state_dir, **changes):
    """A worker in a process of its own; starting it does not hold up this event loop."""
    context = process(state_dir, **changes)
    running = await asyncio.to_thread(context.__enter__)
    try:
        yield running
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


def advertised(cluster):
    """Settings of a worker that is found over mDNS on loopback alone."""
    return {"MDNS": "true", "MDNS_INTERFACES": LOOPBACK, "CLUSTER": cluster}
