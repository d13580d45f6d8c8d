"""Streams to neighbours: opened when first needed, kept, one writer each."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Collection

from protos.channels import Caller
from protos.client import ExchangeStream, WorkerClient
from protos.errors import ImbrexError, LostWorker, PeerViolation
from protos.failures import SendFailed
from worker.actions import SendToPeer
from worker.wire import messages

# More neighbours than any plan of a home gives one device.
_MAX_PEERS = 64
_MAX_WAITING = 4096
_CONNECT_S = 2.0
# A neighbour that takes nothing for so long, and then more slowly than any link of use (0.8 Mbps),
# hangs: what waits for it is memory, and somebody waits for what waits.
PATIENCE_S = 5.0
_SLOWEST_BYTES_PER_S = 1e5

OnFailure = Callable[[SendToPeer, ImbrexError], None]


class Peers:
    """Delivers pieces to other workers. What cannot be sent is handed to `on_failure`."""

    def __init__(self, caller: Caller, version: str, on_failure: OnFailure) -> None:
        self._caller = caller
        self._version = version
        self._on_failure = on_failure
        self._peers: OrderedDict[tuple[str, str], _Peer] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def send(self, action: SendToPeer) -> None:
        """Queues pieces for a neighbour."""
        key = (action.device, action.address)
        peer = self._peers.get(key)
        if peer is None:
            self._make_room()
            peer = _Peer(action.device, action.address, self)
            self._peers[key] = peer
        self._peers.move_to_end(key)
        if not peer.add(action):
            self.fail(
                action,
                SendFailed(
                    cause=f"{_MAX_WAITING} messages wait for {action.device}",
                    cure="See whether that worker hangs, and restart it",
                ),
            )

    def fail(self, action: SendToPeer, error: ImbrexError) -> None:
        """Reports what could not be sent."""
        self._on_failure(action, error)

    async def connect(self, device: str, address: str) -> tuple[WorkerClient, ExchangeStream]:
        """A stream to the neighbour, whose identity is checked.

        Raises:
            ImbrexError: it does not answer, speaks another protocol, or is somebody else.
        """
        client = WorkerClient(address, self._caller, device)
        try:
            reply = await client.hello(self._version, timeout_s=_CONNECT_S)
            if reply.facts.id != device:
                raise PeerViolation(
                    cause=f"{address} is device {reply.facts.id}, not {device}",
                    cure="The plan is replaced when the coordinator learns the new address",
                )
            return client, client.exchange()
        except BaseException:
            await client.close()
            raise

    def keep(self, members: Collection[str]) -> None:
        """Drops the streams to devices that are not among these."""
        for key in [key for key in self._peers if key[0] not in members]:
            self._close(self._peers.pop(key))

    async def close(self) -> None:
        """Drops what waits and closes every stream."""
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


class _Peer:
    """One neighbour and the task that writes to it."""

    def __init__(self, device: str, address: str, peers: Peers) -> None:
        self._device = device
        self._address = address
        self._peers = peers
        self._waiting: deque[SendToPeer] = deque()
        self._changed = asyncio.Event()
        self._client: WorkerClient | None = None
        self._stream: ExchangeStream | None = None
        self._writer = asyncio.get_running_loop().create_task(self._write_all())

    def add(self, action: SendToPeer) -> bool:
        """Queues; False when too much waits."""
        if len(self._waiting) >= _MAX_WAITING:
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
        """Sends; a kept stream that broke meanwhile is opened again once. What then arrives twice
        is dropped there.
        """
        fresh = self._stream is None
        try:
            await self._send(action)
        except ImbrexError as error:
            await self._disconnect()
            if fresh:
                self._peers.fail(action, error)
                return
            try:
                await self._send(action)
            except ImbrexError as again:
                await self._disconnect()
                self._peers.fail(action, again)

    async def _send(self, action: SendToPeer) -> None:
        if self._stream is None:
            self._client, self._stream = await self._peers.connect(self._device, self._address)
        size = sum(piece.array.nbytes for piece in action.pieces)
        patience_s = PATIENCE_S + size / _SLOWEST_BYTES_PER_S
        for items, payloads in messages(action.pieces):
            try:
                async with asyncio.timeout(patience_s):
                    await self._stream.write(items, payloads)
            except TimeoutError:
                raise LostWorker(
                    cause=f"{self._address} has not taken {size} bytes for {patience_s:.0f} s",
                    cure="See whether that worker hangs, and restart it",
                ) from None

    async def _disconnect(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        if self._client is not None:
            await self._client.close()
        self._client = self._stream = None
