"""The messages of an Exchange stream over a direct TCP stream instead of gRPC; on an event loop.

A worker offers its host a port and a token in the initial metadata of the call; the host connects
to that port, sends one byte that tells its stream from a neighbour's (`worker.peers`), and then,
over TLS if the cluster has certificates, the same messages as over gRPC:

    u32 little-endian   length of the message
    message             as `protos.wire.frames` says; the first is the token, whose answer is empty

The call stays open: the stream ends with the call, and the call with the stream. A worker that
offers no stream, or cannot be reached there, is sent the same messages over the call.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from protos.errors import ImbrexError, LostWorker, PeerViolation
from protos.trust.credentials import Credentials
from protos.trust.identity import device_name
from protos.wire.frames import MAX_MESSAGE_BYTES, Buffer

# In the initial metadata of an Exchange call: "PORT TOKEN".
OFFER_KEY = "imbrex-direct"
TOKEN_BYTES = 32
# The first byte of a host's stream, before TLS: neither a neighbour's greeting nor TLS begins with
# it.
PREFACE = b"\x02"
# The greeting takes a round trip or two.
GREET_S = 2.0

_LENGTH = struct.Struct("<I")
# Bytes read at once, if available: a small message then takes one system call.
_AHEAD_BYTES = 64 << 10
# Received bytes that have not been read yet: beyond this the sender waits, as with gRPC.
_MOST_WAITING_BYTES = 1 << 20
# The kernel notices a vanished peer (a pulled cable) after about 20 s.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 2))


class Direct(asyncio.BufferedProtocol):
    """One end. One task may read while others write. Messages above `most_bytes` are refused; the
    limit starts at the size of a token and is raised once the other end has authenticated.
    """

    def __init__(self, most_bytes: int = TOKEN_BYTES) -> None:
        self.most_bytes = most_bytes
        # Whether the stream is, or has been, connected.
        self.is_connected = False
        self._transport: asyncio.Transport  # once it is connected
        self._loop = asyncio.get_running_loop()
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        self._start = self._stop = 0
        # The message being read, if it is not within `_ahead`, and how many of its bytes have
        # arrived.
        self._message: memoryview | None = None
        self._filled = 0
        self._messages: deque[Buffer] = deque()
        self._waiting_bytes = 0
        self._is_paused = False
        self._refused: PeerViolation | None = None
        self._has_ended = False
        # Set when a message, or the stream's end, has come.
        self._news = asyncio.Event()
        # Set while more is unsent than the kernel accepts.
        self._emptied: asyncio.Future[None] | None = None

    async def read(self) -> Buffer | None:
        """The next message, 16-aligned in memory; None at the stream's end, even in the middle of a
        message.

        Raises:
            PeerViolation: it is longer than allowed.
        """
        while not self._messages:
            if self._refused is not None:
                raise self._refused
            if self._has_ended:
                return None
            self._news.clear()
            await self._news.wait()
        message = self._messages.popleft()
        self._waiting_bytes -= len(message)
        if self._is_paused and self._waiting_bytes < _MOST_WAITING_BYTES:
            self._is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        return message

    async def write(self, buffers: Sequence[Buffer]) -> None:
        """Sends one message; returns when the kernel or the TLS layer has taken it.

        Raises:
            LostWorker: the stream has ended.
        """
        if not self._transport.is_closing():
            size = sum(len(buffer) for buffer in buffers)
            self._transport.writelines([_LENGTH.pack(size), *buffers])
            if self._emptied is not None:
                await asyncio.shield(self._emptied)
        if self._transport.is_closing():
            raise LostWorker(cause="the stream has ended", cure="Connect again")

    def close(self) -> None:
        """Ends the stream after sending what was written, if that does not take long."""
        if self.is_connected:
            self._transport.close()
            self._loop.call_later(GREET_S, self._transport.abort)

    def abort(self) -> None:
        """Ends the stream at once."""
        if self.is_connected:
            self._transport.abort()

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the other end's certificate; none without TLS."""
        shown = self._transport.get_extra_info("peercert") or {}
        return tuple(name for kind, name in shown.get("subjectAltName", ()) if kind == "DNS")

    # ------------------------------------------------------------ called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The stream is connected."""
        self._transport, self.is_connected = cast("asyncio.Transport", transport), True
        # Nothing should be buffered here while the kernel would accept it.
        self._transport.set_write_buffer_limits(high=1, low=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        del sizehint
        if self._message is not None:
            return self._message[self._filled :]
        return self._ahead[self._stop :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have arrived: of the long message being read, or of several that are read
        ahead.
        """
        if self._message is not None:
            self._filled += nbytes
            if self._filled == len(self._message):
                message, self._message = self._message, None
                self._came(message)
            return
        self._stop += nbytes
        while self._stop - self._start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._ahead, self._start)
            if size > self.most_bytes:
                self._refused = PeerViolation(
                    cause=f"a peer sent a message of {size} bytes, limit {self.most_bytes}"
                )
                self._start = self._stop = 0
                self.abort()
                return
            begin = self._start + _LENGTH.size
            self._start = min(begin + size, self._stop)
            if begin + size <= self._stop:
                self._came(bytes(self._ahead[begin : self._start]))
                continue
            self._message = np.empty(size, np.uint8).data
            self._filled = self._stop - begin
            self._message[: self._filled] = self._ahead[begin : self._stop]
        left = self._stop - self._start
        self._ahead[:left] = bytes(self._ahead[self._start : self._stop])
        self._start, self._stop = 0, left

    def eof_received(self) -> None:
        """The other end has half-closed: close the stream."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The stream has ended."""
        del exc
        self._has_ended = True
        self._news.set()
        self.resume_writing()

    def pause_writing(self) -> None:
        """The send buffer is above its limit."""
        self._emptied = self._loop.create_future()

    def resume_writing(self) -> None:
        """The send buffer has drained, or the stream has ended."""
        if self._emptied is not None:
            self._emptied.set_result(None)
            self._emptied = None

    def _came(self, message: Buffer) -> None:
        self._messages.append(message)
        self._waiting_bytes += len(message)
        if self._waiting_bytes >= _MOST_WAITING_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._news.set()


def offer(port: int, token: str) -> tuple[tuple[str, str], ...]:
    """The initial metadata that offers a stream."""
    return ((OFFER_KEY, f"{port} {token}"),)


async def accept_offer(
    metadata: Iterable[tuple[str, str | bytes]],
    address: str,
    device: str,
    credentials: Credentials | None,
) -> Direct | None:
    """The stream that the worker at `address` offers, its identity checked; None without an offer.

    Raises:
        LostWorker: no answer there, or from another device.
    """
    offered = str(dict(metadata).get(OFFER_KEY, ""))
    port, _, token = offered.partition(" ")
    if not (port.isdigit() and token):
        return None
    there = f"{address.rpartition(':')[0]}:{port}"
    direct = Direct()
    try:
        with await asyncio.to_thread(connected, there) as opened:
            opened.sendall(PREFACE)
            opened.setblocking(False)
            async with asyncio.timeout(GREET_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: direct,
                    sock=opened.dup(),
                    ssl=credentials.tls_client() if credentials else None,
                    server_hostname=device_name(device) if credentials else None,
                )
                await direct.write([token.encode()])
                if await direct.read() is None:
                    raise ConnectionRefusedError("it does not let us in")
    except (OSError, ImbrexError) as error:
        direct.abort()
        raise LostWorker(
            cause=f"the stream to {there}: {error or type(error).__name__}",
            cure="Check that this port of the worker can be reached from here",
        ) from error
    direct.most_bytes = MAX_MESSAGE_BYTES
    return direct


def connected(address: str) -> socket.socket:
    """A TCP stream to `host:port`; waits for it.

    Raises:
        OSError: no answer there.
    """
    host, _, port = address.rpartition(":")
    stream = socket.create_connection((host.strip("[]"), int(port)), GREET_S)
    tune(stream)
    return stream


def tune(stream: socket.socket) -> None:
    """Socket options: small messages are sent at once, and a vanished peer is noticed."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in _KEEPALIVE:
        stream.setsockopt(socket.IPPROTO_TCP, option, seconds)
