"""The pool of devices: connections, driven by the pure membership."""

from __future__ import annotations

import asyncio
import math
import platform
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import structlog

from coordinator.devices.addresses import Peer
from coordinator.devices.announcements import (
    Announcements,
    DeviceJoined,
    DeviceLeft,
    DevicesChanged,
)
from coordinator.devices.connection import Connection, Receiver
from coordinator.devices.discovery import Discovery
from coordinator.devices.events import (
    Action,
    AddressProblem,
    AddressSource,
    Close,
    Connect,
    Denied,
    Dropped,
    Event,
    Greeted,
    Join,
    Leave,
    Sighted,
    Tick,
    Withdrawn,
)
from coordinator.devices.membership import MAX_DEVICES, DeviceTable
from coordinator.trust.trust import Trust
from protos.errors import (
    BadConfiguration,
    ImbrexError,
    LostWorker,
    NotFound,
    PeerViolation,
)
from protos.wire.facts import DeviceId, Facts

# How often membership checks whether an address is due for another attempt.
TICK_S = 0.25
# A device that accepts but never answers must not hold an attempt forever.
CONNECT_TIMEOUT_S = 5.0
# For addresses that may be invented: a home's network answers within milliseconds, a sleeping
# device on Wi-Fi within some hundred. This many attempts at a time, each with a socket.
KNOCK_TIMEOUT_S = 1.0
MOST_KNOCKING = 128
# After a flood of announcements, when none has come for this long, all workers are asked again:
# there may have been real ones among those that were dropped.
CALM_S = 3.0

log = structlog.get_logger(__name__)


class Pool:
    """Finds workers and keeps connections to them; announces every join and leave. `losses` counts
    failed connections by the code of the error: `lost_worker`, `peer_violation`, `stream_refused`;
    `departures` has the error of each device that left by one and has not come back.
    """

    def __init__(self, trust: Trust, announcements: Announcements) -> None:
        self._trust = trust
        self._announcements = announcements
        self._receiver: Receiver  # once it is started
        self._members, self._generation = trust.members(), trust.generation
        self._membership = DeviceTable(random.random)
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._met: dict[DeviceId, Facts] = {}
        self._knocking = asyncio.Semaphore(MOST_KNOCKING)
        self._runs: dict[Connection, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._discovery: Discovery | None = None
        self._stopped = False
        self.losses: Counter[str] = Counter()
        self.departures: dict[DeviceId, ImbrexError] = {}

    async def start(
        self,
        receiver: Receiver,
        listed: Sequence[str],
        cluster: str = "",
        interfaces: Sequence[str] = (),
    ) -> None:
        """Tries the listed addresses and, if `cluster` is given, listens for announcements. Devices
        send to `receiver`.
        """
        self._receiver = receiver
        self._ticker = asyncio.create_task(self._tick())
        for address in listed:
            self.sighted(address, "static")
        if cluster:
            self._discovery = Discovery(
                cluster,
                interfaces,
                lambda address: self.sighted(address, "mdns"),
                lambda device: DeviceId(device) in self._membership.ready,
            )
            await self._discovery.start()

    async def stop(self) -> None:
        """Closes all connections."""
        if self._discovery is not None:
            await self._discovery.stop()
        self._stopped = True
        tasks = [*self._connecting.values(), *([self._ticker] if self._ticker else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        runs = list(self._runs.values())
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))
        await asyncio.gather(*self._closing, return_exceptions=True)

    def sighted(self, address: str, source: AddressSource) -> None:
        """A worker may be listening there."""
        self._step(Sighted(address, source))

    def withdrawn(self, address: str) -> None:
        """Nobody will listen there again."""
        self._step(Withdrawn(address))

    def replaced_by(self, peer: Peer) -> str | None:
        """Another address at which the device of this address is in use, if there is one: it has
        moved there, or announces addresses that only itself can reach.
        """
        known = peer.device_id
        if known is None and self._discovery is not None:
            known = DeviceId(self._discovery.announced_by(peer.address))
        used = self._membership.ready.get(known) if known else None
        return None if used == peer.address else used

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Every known address and its state."""
        return self._membership.peers

    def ready(self) -> dict[DeviceId, Connection]:
        """Devices that can be used now."""
        return {
            device: self._connections[address] for device, address in self._membership.ready.items()
        }

    @property
    def transfers(self) -> int:
        """Changes with each message to a device, and as an upload begins and ends."""
        return sum(connection.transfers for connection in self._connections.values())

    def is_host(self, device: DeviceId) -> bool:
        """Whether a device is the host worker."""
        return self._membership.is_host(device)

    def connection(self, device: DeviceId) -> Connection:
        """The connection to a device.

        Raises:
            LostWorker: it is not ready.
        """
        connection = self.get(device)
        if connection is None:
            raise LostWorker(cause=f"device {device} is not connected", cure="Try again.")
        return connection

    def get(self, device: DeviceId) -> Connection | None:
        """The connection to a device, if it is ready."""
        address = self._membership.ready.get(device)
        return None if address is None else self._connections[address]

    def facts(self, device: DeviceId) -> Facts | None:
        """What a device that is ready says of itself."""
        connection = self.get(device)
        return connection.facts if connection else None

    def shows(self, device: DeviceId) -> bool:
        """Whether a device can be asked for what its peers sent."""
        connection = self.get(device)
        return connection is not None and connection.shows

    def is_alike(self, device: DeviceId) -> bool:
        """Whether a device has the same kind of processor as this machine, as far as is known."""
        facts = self.facts(device) or self._met.get(device)
        return facts is not None and facts.machine == platform.machine()

    def last_facts(self, device: DeviceId | None) -> Facts | None:
        """What a device said of itself when it last connected, since this process started."""
        return self._met.get(device) if device else None

    def find(self, name: str) -> Connection:
        """The connection to the device with this id, or with this name if it is unique.

        Raises:
            NotFound: no ready device matches, or several do.
        """
        ready = self.ready()
        if DeviceId(name) in ready:
            return ready[DeviceId(name)]
        named = [connection for connection in ready.values() if connection.facts.name == name]
        if len(named) != 1:
            known = ", ".join(sorted({connection.facts.name for connection in ready.values()}))
            raise NotFound(
                cause=f"{len(named) or 'no'} ready devices are called {name!r}",
                cure=f"Ready devices: {known or 'none'}; name one of them, or give its id",
            )
        return named[0]

    # ------------------------------------------------------------ membership

    def _step(self, event: Event) -> None:
        if self._stopped:
            return
        with self._announcements.held():
            for action in self._membership.step(event, time.monotonic()):
                self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case Connect(address):
                self._connecting[address] = asyncio.create_task(self._connect(address))
            case Close(address):
                self._close(address)
            case Join(device, address):
                log.info("device joined", device=device, address=address)
                connection = self._connections[address]
                self.departures.pop(device, None)
                self._runs[connection] = asyncio.create_task(self._run(address, connection))
                self._announcements.announce(DeviceJoined(device))
                self._announcements.announce(DevicesChanged(f"{device} joined"))
            case Leave(device, address, reason):
                gone = self._connections.get(address)
                silent_s = time.monotonic() - gone.last_seen_s if gone else math.inf
                self._announcements.announce(DeviceLeft(device, address, reason, silent_s))
                self._announcements.announce(DevicesChanged(f"{device} left"))
            case AddressProblem(address, code, cause, cure):
                log.warning("problem", address=address, code=code, cause=cause, cure=cure)

    async def _connect(self, address: str) -> None:
        try:
            if self._membership.is_stranger(address):
                await self._knock(address)
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await Connection.open(
                    address, self._trust, self._receiver, self._announcements
                )
        except (TimeoutError, OSError):
            self._step(Dropped(address, f"{address} does not answer"))
        except (PeerViolation, BadConfiguration) as error:
            cause = f"the worker at {address} cannot be used: {error.cause}"
            self._step(Denied(address, cause, error.cure))
        except ImbrexError as error:
            self._step(Dropped(address, error.cause))
        else:
            self._connections[address] = connection
            self._met.pop(connection.facts.id, None)
            self._met[connection.facts.id] = connection.facts
            if len(self._met) > MAX_DEVICES:
                del self._met[next(iter(self._met))]
            self._step(Greeted(address, connection.facts.id, connection.facts.boot_id))
        finally:
            if self._connecting.get(address) is asyncio.current_task():
                del self._connecting[address]

    async def _knock(self, address: str) -> None:
        """Returns if somebody listens there; much cheaper than a gRPC channel.

        Raises:
            OSError: nobody listens.
        """
        host, _, port = address.rpartition(":")
        async with self._knocking, asyncio.timeout(KNOCK_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _run(self, address: str, connection: Connection) -> None:
        try:
            self._lost(address, connection, await connection.run())
        finally:
            self._runs.pop(connection, None)

    def _lost(self, address: str, connection: Connection, reason: ImbrexError) -> None:
        self.losses[reason.code] += 1
        if self._connections.get(address) is connection:
            self.departures.pop(connection.facts.id, None)
            self.departures[connection.facts.id] = reason
            if len(self.departures) > MAX_DEVICES:
                del self.departures[next(iter(self.departures))]
            self._step(Dropped(address, reason.cause))
            self._close(address)

    def _close(self, address: str) -> None:
        connecting = self._connecting.get(address)
        if connecting is not None and connecting is not asyncio.current_task():
            connecting.cancel()
        connection = self._connections.pop(address, None)
        if connection is not None:
            run = self._runs.pop(connection, None)
            if run is not None and run is not asyncio.current_task():
                run.cancel()
            task = asyncio.create_task(connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _tick(self) -> None:
        turned_away, calm_s = 0, math.inf
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self._step(Tick())
                self._follow_members()
            except Exception:  # no descriptors, a disk that cannot be read: the next may succeed
                log.exception("devices could not be looked after")
            now = time.monotonic()
            if self._membership.turned_away != turned_away:
                turned_away, calm_s = self._membership.turned_away, now + CALM_S
            elif now >= calm_s and self._discovery is not None:
                calm_s = math.inf
                await self._discovery.ask_again()

    def _follow_members(self) -> None:
        """Drops devices that were removed from the members at once, and tells the others."""
        try:
            members, generation = self._trust.members(), self._trust.generation
        except ImbrexError as error:
            log.error("the list of members cannot be read", cause=error.cause, cure=error.cure)
            return
        if (members, generation) == (self._members, self._generation):
            return
        self._members, self._generation = members, generation
        if self._trust.is_revoked:
            log.error("this coordinator was removed from the cluster", cure=_REVOKED)
        for device, connection in self.ready().items():
            if members is None or device in members:
                connection.tell_members()
            else:
                removed = BadConfiguration(
                    cause=f"device {device} was removed from the cluster", cure=_INVITE
                )
                self._lost(connection.address, connection, removed)


_REVOKED = "Stop it; to use it again, join with a new token (`imbrex cluster invite --coordinator`)"
_INVITE = "If it should come back, invite it (`imbrex cluster invite`)"
