"""Streams to neighbours: opened on first use and kept. They use the data plane if the neighbour's
can be reached, else gRPC, with one writer each.
"""

import asyncio
import socket
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import structlog

from protos.errors import ImbrexError, LostWorker, PeerViolation
from protos.failures import SendFailed
from protos.rpc.channels import Caller
from protos.rpc.worker_client import ExchangeStream, WorkerClient
from protos.wire.endpoint import Endpoint
from worker.peers.data_stream import (
    MAX_WAITING,
    PATIENCE_S,
    SLOWEST_BYTES_PER_S,
    DataStream,
    connect,
)
from worker.tasks.actions import SendToPeer
from worker.tasks.task_items import messages

# More neighbours than any plan gives one device.
_MOST_NEIGHBOURS = 64
_CONNECT_S = 2.0

OnFailure = Callable[[SendToPeer, ImbrexError], None]
_Key = tuple[str, str]

_log = structlog.get_logger()


class Neighbours:
    """Delivers pieces to other workers. What cannot be sent is passed to `on_failure`. Created on
    the event loop, where its methods run unless they say otherwise.
    """

    def __init__(self, caller: Caller, version: str, on_failure: OnFailure) -> None:
        self.caller = caller
        # Counts of messages by transport.
        self.sent: Counter[str] = Counter()
        self._version = version
        self._on_failure = on_failure
        self._neighbours: OrderedDict[_Key, _Neighbour] = OrderedDict()
        # Read by any thread.
        self._data_streams: dict[_Key, DataStream] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    def send(self, action: SendToPeer) -> None:
        """Sends pieces to a neighbour, at once if there is a stream; may be called in any
        thread.
        """
        data_stream = self._data_streams.get((action.device, action.address))
        if data_stream is not None and data_stream.send(action):
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
        neighbour = self._neighbours.get(key)
        if neighbour is None:
            self._make_room()
            neighbour = _Neighbour(action.device, action.address, self)
            self._neighbours[key] = neighbour
        self._neighbours.move_to_end(key)
        if not neighbour.add(action):
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

    def set_data_stream(self, key: _Key, data_stream: DataStream | None) -> None:
        """Sets the data stream for this neighbour's pieces; None removes it."""
        if data_stream is None:
            self._data_streams.pop(key, None)
        else:
            self._data_streams[key] = data_stream

    def keep(self, members: Collection[str]) -> None:
        """Drops the streams to all other devices."""
        for key in [key for key in self._neighbours if key[0] not in members]:
            self._close(self._neighbours.pop(key))

    async def close(self) -> None:
        """Drops what is queued and closes every stream."""
        neighbours = list(self._neighbours.values())
        self._neighbours.clear()
        for neighbour in neighbours:
            await neighbour.close()
        await asyncio.gather(*self._closing)

    def _make_room(self) -> None:
        if len(self._neighbours) < _MOST_NEIGHBOURS:
            return
        _, oldest = self._neighbours.popitem(last=False)
        self._close(oldest)

    def _close(self, neighbour: "_Neighbour") -> None:
        closing = asyncio.get_running_loop().create_task(neighbour.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


class _Neighbour:
    """One neighbour, and the task that opens streams to it and writes to those of gRPC."""

    def __init__(self, device: str, address: str, neighbours: Neighbours) -> None:
        self._device = device
        self._address = address
        self._neighbours = neighbours
        self._waiting: deque[SendToPeer] = deque()
        self._changed = asyncio.Event()
        self._data_stream: _NeighbourStream | None = None
        self._client: WorkerClient | None = None
        self._stream: ExchangeStream | None = None
        self._writer = asyncio.get_running_loop().create_task(self._write_all())

    def add(self, action: SendToPeer) -> bool:
        """Queues pieces; False if the queue is full."""
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting.append(action)
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

    async def _deliver(self, action: SendToPeer) -> None:
        """Sends; a kept stream that has broken is opened again once. If that fails, nothing waits
        for the next attempt: the host passes it on.
        """
        is_fresh = self._stream is None and self._data_stream is None
        try:
            await self._send(action)
        except Exception as error:
            reason = error if isinstance(error, ImbrexError) else _unexpected(error)
            await self._disconnect()
            if is_fresh:
                failed, self._waiting = [action, *self._waiting], deque()
                for lost in failed:
                    self._neighbours.fail(lost, reason)
            elif action.is_second:
                self._neighbours.fail(action, reason)
            else:
                action.is_second = True
                self._waiting.appendleft(action)

    async def _send(self, action: SendToPeer) -> None:
        if self._stream is None and self._data_stream is None:
            await self._connect()
        if self._data_stream is not None:
            if not self._data_stream.send(action):
                raise LostWorker(
                    cause=f"the data stream to {self._address} is closed", cure="Connect again"
                )
            self._neighbours.sent["data_messages"] += 1
            return
        assert self._stream is not None
        size = action.size_bytes
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
        self._neighbours.sent["grpc_messages"] += 1

    async def _connect(self) -> None:
        client, data = await self._neighbours.greet(self._device, self._address)
        if data:
            try:
                opened = await asyncio.to_thread(
                    connect, data, self._device, self._neighbours.caller
                )
            except ImbrexError as error:
                _log.warning(
                    "halos are sent over gRPC",
                    device=self._device,
                    cause=error.cause,
                    cure=error.cure,
                )
            else:
                await client.close()
                self._data_stream = _NeighbourStream(opened, self._neighbours.caller.endpoint, self)
                self._neighbours.set_data_stream((self._device, self._address), self._data_stream)
                return
        self._client, self._stream = client, client.exchange()

    def broken(
        self, data_stream: "_NeighbourStream", unsent: Sequence[SendToPeer], error: ImbrexError
    ) -> None:
        """Handles a broken data stream; called in any thread."""
        self._neighbours.on_loop(self._again, data_stream, unsent, error)

    def _again(
        self, data_stream: "_NeighbourStream", unsent: Sequence[SendToPeer], error: ImbrexError
    ) -> None:
        if self._data_stream is data_stream:
            self._data_stream = None
            self._neighbours.set_data_stream((self._device, self._address), None)
            data_stream.close()
        for action in unsent:
            was_second, action.is_second = action.is_second, True
            if was_second or not self.add(action):
                self._neighbours.fail(action, error)

    async def _disconnect(self) -> None:
        data_stream, self._data_stream = self._data_stream, None
        if data_stream is not None:
            self._neighbours.set_data_stream((self._device, self._address), None)
            await asyncio.to_thread(data_stream.close)
        if self._stream is not None:
            self._stream.cancel()
        if self._client is not None:
            await self._client.close()
        self._client = self._stream = None


class _NeighbourStream(DataStream):
    """A stream whose neighbour hears that it has broken."""

    def __init__(self, stream: socket.socket, endpoint: Endpoint, neighbour: _Neighbour) -> None:
        self._neighbour = neighbour
        super().__init__(stream, endpoint)

    def broken(self, unsent: Sequence[SendToPeer], error: ImbrexError) -> None:
        """Has it sent again."""
        self._neighbour.broken(self, unsent, error)


def _unexpected(error: Exception) -> SendFailed:
    """There is no memory, or no thread can be started."""
    _log.error("pieces cannot be sent", exc_info=error)
    return SendFailed(cause=repr(error), cure="See the log of the worker that sends")
