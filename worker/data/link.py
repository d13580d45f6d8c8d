"""One stream to one neighbour: whoever has something for it sends at once, in his own thread; what
the socket does not take then goes to the stream's writer.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from protos.channels import Caller
from protos.endpoint import Endpoint
from protos.errors import ImbrexError, LostWorker
from protos.identity import device_name
from worker.data.packets import WELCOME, greeting, packets
from worker.tasks.actions import SendToPeer

CONNECT_S = 2.0
# A neighbour that takes nothing for so long, and then more slowly than any link of use (0.8 Mbps),
# hangs: what waits for it is memory, and somebody waits for what waits.
PATIENCE_S = 5.0
SLOWEST_BYTES_PER_S = 1e5
MAX_WAITING = 4096

# Less than the kernel's limit of 1024 buffers for a call.
_MOST_BUFFERS = 512
# TLS takes one buffer at a time: small ones are joined, which costs less than a record each.
_JOINED_BYTES = 256 << 10
# A neighbour whose cable was pulled is noticed by the kernel after about 20 s.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 2))

# What was not sent, each with whether that was its second try, and why.
OnBroken = Callable[[Sequence[tuple[SendToPeer, bool]], ImbrexError], None]


@dataclass(slots=True, eq=False)
class _Unsent:
    action: SendToPeer
    is_second: bool
    buffers: list[memoryview]
    since_s: float
    patience_s: float


class Link:
    """An open stream to a neighbour. `on_broken` is called once, from any thread, with what was not
    sent; from then on `send` refuses.
    """

    def __init__(self, stream: socket.socket, endpoint: Endpoint, on_broken: OnBroken) -> None:
        self._socket = stream
        self._endpoint = endpoint
        self._on_broken = on_broken
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._unsent: deque[_Unsent] = deque()
        self._is_open = True
        self._hang_up = select.poll()
        self._hang_up.register(stream, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        self._writer = threading.Thread(target=self._write_all, name="data writer", daemon=True)
        self._writer.start()

    def send(self, action: SendToPeer, *, is_second: bool = False) -> bool:
        """Sends without waiting; False where the stream is closed, or too much waits."""
        buffers = packets(action.pieces)
        size = sum(each.nbytes for each in buffers)
        self._endpoint.charge(size)
        waiting = _Unsent(
            action, is_second, buffers, time.monotonic(), PATIENCE_S + size / SLOWEST_BYTES_PER_S
        )
        with self._lock:
            if not self._is_open or len(self._unsent) >= MAX_WAITING:
                return False
            try:
                if not self._unsent:
                    if self._hang_up.poll(0):
                        raise ConnectionResetError("it has closed the connection")
                    self._write(buffers)
            except OSError as error:
                broken: OSError | None = error
                self._is_open = False
            else:
                broken = None
                if buffers:
                    self._unsent.append(waiting)
            self._changed.notify()
        if broken is not None:
            self._end(_lost(broken))
            return False
        return True

    def close(self) -> None:
        """Ends the stream; what waits is dropped."""
        with self._lock:
            self._is_open = False
            self._unsent.clear()
            self._changed.notify()
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._writer.join()
        self._socket.close()

    def _write_all(self) -> None:
        """What did not fit at once, in order, as the socket takes it."""
        room = select.poll()
        room.register(self._socket, select.POLLOUT)
        try:
            while True:
                with self._lock:
                    while self._is_open and not self._unsent:
                        self._changed.wait()
                    if not self._is_open:
                        return
                    first = self._unsent[0]
                left_s = first.since_s + first.patience_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"it has not taken a message for {first.patience_s:.0f} s")
                room.poll(left_s * 1e3)
                with self._lock:
                    self._write(first.buffers)
                    if not first.buffers and self._unsent:
                        self._unsent.popleft()
                        if self._unsent:
                            self._unsent[0].since_s = time.monotonic()
        except OSError as error:
            with self._lock:
                self._is_open = False
            self._end(_lost(error))

    def _end(self, error: ImbrexError) -> None:
        with self._lock:
            unsent = [(each.action, each.is_second) for each in self._unsent]
            self._unsent.clear()
            self._changed.notify()
        self._on_broken(unsent, error)

    def _write(self, buffers: list[memoryview]) -> None:
        """Removes from `buffers` what the socket takes now."""
        while buffers:
            try:
                taken = self._send_some(buffers)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            while buffers and taken >= buffers[0].nbytes:
                taken -= buffers.pop(0).nbytes
            if taken:
                buffers[0] = buffers[0].cast("B")[taken:]

    def _send_some(self, buffers: list[memoryview]) -> int:
        if not isinstance(self._socket, ssl.SSLSocket):
            return self._socket.sendmsg(buffers[:_MOST_BUFFERS])
        if buffers[0].nbytes < _JOINED_BYTES and len(buffers) > 1:
            joined = [buffers.pop(0)]
            while buffers and sum(each.nbytes for each in joined) < _JOINED_BYTES:
                joined.append(buffers.pop(0))
            buffers.insert(0, memoryview(b"".join(joined)))
        return self._socket.send(buffers[0])


def connect(address: str, device: str, caller: Caller) -> socket.socket:
    """A stream to a device's data plane, non-blocking, its identity checked.

    Raises:
        LostWorker: nobody answers there, or somebody else.
    """
    host, _, port = address.rpartition(":")
    stream: socket.socket | None = None
    try:
        stream = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
        tune(stream)
        if caller.credentials is not None:
            context = caller.credentials.tls_client()
            stream = context.wrap_socket(stream, server_hostname=device_name(device))
        secret = caller.secret if caller.credentials is None else ""
        stream.sendall(greeting(caller.sender, secret))
        if stream.recv(1) != WELCOME:
            raise ConnectionRefusedError("it does not let us in")
    except OSError as error:
        if stream is not None:
            stream.close()
        raise _lost(error, address) from error
    stream.setblocking(False)
    return stream


def tune(stream: socket.socket) -> None:
    """Small messages leave at once; who vanished is noticed."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in _KEEPALIVE:
        stream.setsockopt(socket.IPPROTO_TCP, option, seconds)


def _lost(error: OSError, address: str = "a neighbour") -> LostWorker:
    return LostWorker(
        cause=f"the data stream to {address}: {error}",
        cure="See whether that worker runs, and whether its data port can be reached",
    )
