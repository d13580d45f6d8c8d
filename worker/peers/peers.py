"""Streams to neighbours: opened on first use and kept. They use the data plane if the neighbour's
can be reached, else gRPC, with one writer each.
"""

import asyncio
import socket
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from protos.errors import ImbrexError, LostWorker, PeerViolation
from protos.failures import SendFailed
from protos.rpc.channels import Caller
from protos.rpc.client import ExchangeStream, WorkerClient
from protos.wire.endpoint import Endpoint
from worker.peers.link import MAX_WAITING, PATIENCE_S, SLOWEST_BYTES_PER_S, Link, connect
from worker.tasks.actions import SendToPeer
from worker.tasks.task_items import messages

# More neighbours than any plan gives one device.
_MAX_PEERS = 64
_CONNECT_S = 2.0

OnFailure = Callable[[SendToPeer, ImbrexError], None]
_Key = tuple[str, str]
_Unsent = Sequence[tuple[SendToPeer, bool]]

_log = structlog.get_logger()


class Peers:
    """Delivers pieces to other workers. What cannot be sent is passed to `on_failure`. Created on
    the event loop, where its methods run unless they say otherwise.
    """

    def __init__(self, caller: Caller, version: str, on_failure: OnFailure) -> None:
        self.caller = caller
        # Counts of messages by transport.
        self.sent: Counter[str] = Counter()
        self._version = version
        self._on_failure = on_failure
        self._peers: OrderedDict[_Key, _Peer] = OrderedDict()
        # Read by any thread.
        self._links: dict[_Key, Link] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    def send(self, action: SendToPeer) -> None:
        """Sends pieces to a neighbour, at once if there is a stream; may be called in any
        thread.
        """
        link = self._links.get((action.device, action.address))
        if link is not None and link.send(action):
            self.sent["data_messages"] += 1
        else:
            self.on_loop(self._queue, action)

    def on_loop(self, do: Callable[..., None], *about: object) -> None:
        """Calls a function on the event loop: at once if this is its thread."""
        if threading.get_ident() == self._loop_thread:
            do(*about)
            return
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(do, *about)

    def _queue(self, action: SendToPeer) -> None:
        key = (action.device, action.address)
        peer = self._peers.get(key)
        if peer is None:
            self._make_room()
            peer = _Peer(action.device, action.address, self)
            self._peers[key] = peer
        self._peers.move_to_end(key)
        if not peer.add(_Waiting(action)):
            self.fail(
                action,
                SendFailed(
                    cause=f"{MAX_WAITING} messages wait for {action.device}",
                    cure="Check whether that worker hangs, and restart it",
                ),
            )

    def fail(self, action: SendToPeer, error: ImbrexError) -> None:
        """Reports what could not be sent."""
        self._on_failure(action, error)

    async def reach(self, device: str, address: str) -> None:
        """Returns when a neighbour has answered over a new connection.

        Raises:
            ImbrexError: it does not answer, or is another device.
        """
        client, _ = await self.greet(device, address)
        await client.close()

    async def greet(self, device: str, address: str) -> tuple[WorkerClient, str]:
        """A client of the neighbour, its identity checked, and the address of its data plane (empty
        if it has none).

        Raises:
            ImbrexError: it does not answer, speaks another protocol, or is another device.
        """
        client = WorkerClient(address, self.caller, device)
        try:
            reply = await client.hello(self._version, timeout_s=_CONNECT_S)
            if reply.facts.id != device:
                raise PeerViolation(
                    cause=f"{address} is device {reply.facts.id}, not {device}",
                    cure="The plan is replaced when the coordinator learns the new address",
                )
        except BaseException:
            await client.close()
            raise
        host = address.rpartition(":")[0]
        return client, f"{host}:{reply.data_port}" if reply.data_port else ""

    def linked(self, key: _Key, link: Link | None) -> None:
        """Sets the link for this neighbour's pieces; None removes it."""
        if link is None:
            self._links.pop(key, None)
        else:
            self._links[key] = link

    def keep(self, members: Collection[str]) -> None:
        """Drops the streams to all other devices."""
        for key in [key for key in self._peers if key[0] not in members]:
            self._close(self._peers.pop(key))

    async def close(self) -> None:
        """Drops what is queued and closes every stream."""
        peers = list(self._peers.values())
        self._peers.clear()
        for peer in peers:
            await peer.close()
        await asyncio.gather(*self._closing)

    def _make_room(self) -> None:
        if len(self._peers) < _MAX_PEERS:
            return
        _, oldest = self._peers.popitem(last=False)
        self._close(oldest)

    def _close(self, peer: "_Peer") -> None:
        closing = asyncio.get_running_loop().create_task(peer.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """Pieces to be sent. Those lost with a broken stream are sent again once; the receiver drops
    duplicates.
    """

    action: SendToPeer
    is_second: bool = False


class _Peer:
    """One neighbour, and the task that opens streams to it and writes to those of gRPC."""

    def __init__(self, device: str, address: str, peers: Peers) -> None:
        self._device = device
        self._address = address
        self._peers = peers
        self._waiting: deque[_Waiting] = deque()
        self._changed = asyncio.Event()
        self._link: _PeerLink | None = None
        self._client: WorkerClient | None = None
        self._stream: ExchangeStream | None = None
        self._writer = asyncio.get_running_loop().create_task(self._write_all())

    def add(self, waiting: _Waiting) -> bool:
        """Queues pieces; False if the queue is full."""
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting.append(waiting)
        self._changed.set()
        return True

    async def close(self) -> None:
        """Ends the writer and the stream."""
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        await self._disconnect()

    async def _write_all(self) -> None:
        while True:
            while self._waiting:
                await self._deliver(self._waiting.popleft())
            self._changed.clear()
            await self._changed.wait()

    async def _deliver(self, waiting: _Waiting) -> None:
        """Sends; a kept stream that has broken is opened again once. If that fails, nothing waits
        for the next attempt: the host passes it on.
        """
        is_fresh = self._stream is None and self._link is None
        try:
            await self._send(waiting)
        except Exception as error:
            reason = error if isinstance(error, ImbrexError) else _unexpected(error)
            await self._disconnect()
            if is_fresh:
                failed, self._waiting = [waiting, *self._waiting], deque()
                for each in failed:
                    self._peers.fail(each.action, reason)
            elif waiting.is_second:
                self._peers.fail(waiting.action, reason)
            else:
                self._waiting.appendleft(_Waiting(waiting.action, is_second=True))

    async def _send(self, waiting: _Waiting) -> None:
        action = waiting.action
        if self._stream is None and self._link is None:
            await self._connect()
        if self._link is not None:
            if not self._link.send(action, is_second=waiting.is_second):
                raise LostWorker(
                    cause=f"the data stream to {self._address} is closed", cure="Connect again"
                )
            self._peers.sent["data_messages"] += 1
            return
        assert self._stream is not None
        size = sum(piece.array.nbytes for piece in action.pieces)
        patience_s = PATIENCE_S + size / SLOWEST_BYTES_PER_S
        for items, payloads in messages(action.pieces):
            try:
                async with asyncio.timeout(patience_s):
                    await self._stream.write(items, payloads)
            except TimeoutError:
                raise LostWorker(
                    cause=f"{self._address} has not accepted {size} bytes for {patience_s:.0f} s",
                    cure="Check whether that worker hangs, and restart it",
                ) from None
        self._peers.sent["grpc_messages"] += 1

    async def _connect(self) -> None:
        client, data = await self._peers.greet(self._device, self._address)
        if data:
            try:
                opened = await asyncio.to_thread(connect, data, self._device, self._peers.caller)
            except ImbrexError as error:
                _log.warning(
                    "halos are sent over gRPC",
                    device=self._device,
                    cause=error.cause,
                    cure=error.cure,
                )
            else:
                await client.close()
                self._link = _PeerLink(opened, self._peers.caller.endpoint, self)
                self._peers.linked((self._device, self._address), self._link)
                return
        self._client, self._stream = client, client.exchange()

    def broken(self, link: "_PeerLink", unsent: _Unsent, error: ImbrexError) -> None:
        """Handles a broken data stream; called in any thread."""
        self._peers.on_loop(self._again, link, unsent, error)

    def _again(self, link: "_PeerLink", unsent: _Unsent, error: ImbrexError) -> None:
        if self._link is link:
            self._link = None
            self._peers.linked((self._device, self._address), None)
            link.close()
        for action, was_second in unsent:
            if was_second or not self.add(_Waiting(action, is_second=True)):
                self._peers.fail(action, error)

    async def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._peers.linked((self._device, self._address), None)
            await asyncio.to_thread(link.close)
        if self._stream is not None:
            self._stream.cancel()
        if self._client is not None:
            await self._client.close()
        self._client = self._stream = None


class _PeerLink(Link):
    """A stream whose neighbour hears that it has broken."""

    def __init__(self, stream: socket.socket, endpoint: Endpoint, peer: _Peer) -> None:
        self._peer = peer
        super().__init__(stream, endpoint)

    def broken(self, unsent: _Unsent, error: ImbrexError) -> None:
        """Has it sent again."""
        self._peer.broken(self, unsent, error)


def _unexpected(error: Exception) -> SendFailed:
    """There is no memory, or no thread can be started."""
    _log.error("pieces cannot be sent", exc_info=error)
    return SendFailed(cause=repr(error), cure="See the log of the worker that sends")
