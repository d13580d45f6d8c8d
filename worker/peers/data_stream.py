"""One stream to one neighbour: a thread with data for it writes to the socket directly; what the
socket does not accept at once is left to the stream's writer thread.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from protos.errors import ImbrexError, LostWorker
from protos.rpc.channels import Caller
from protos.rpc.direct import connected
from protos.trust.identity import device_name
from protos.wire.endpoint import Endpoint
from worker.peers.packets import WELCOME, greeting, packets
from worker.tasks.actions import SendToPeer

# A neighbour that accepts nothing for this long, plus the time at the slowest useful link speed
# (0.8 Mbps), hangs: what is queued for it takes memory, and requests wait for it.
PATIENCE_S = 5.0
SLOWEST_BYTES_PER_S = 1e5
MAX_WAITING = 4096

# Below the kernel's limit of 1024 buffers per call.
_MOST_BUFFERS = 512
# TLS takes one buffer at a time: joining small ones costs less than a record for each.
_JOINED_BYTES = 256 << 10


@dataclass(slots=True, eq=False)
class _Unsent:
    action: SendToPeer
    buffers: list[memoryview | bytes]
    since_s: float
    patience_s: float


class DataStream:
    """An open stream to a neighbour. When it has broken, `send` returns False."""

    def __init__(self, stream: socket.socket, endpoint: Endpoint) -> None:
        self._socket = stream
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._unsent: deque[_Unsent] = deque()
        self._is_open = True
        self._changed = os.eventfd(0)
        self._writer = threading.Thread(target=self._watch, name="data writer", daemon=True)
        self._writer.start()

    def send(self, action: SendToPeer) -> bool:
        """Sends without waiting; False if the stream is closed or its queue is full."""
        buffers = packets(action.pieces)
        self._endpoint.charge(action.size_bytes)
        with self._lock:
            if not self._is_open or len(self._unsent) >= MAX_WAITING:
                return False
            try:
                if not self._unsent:
                    self._write(buffers)
                if buffers:
                    self._wait(action, buffers)
                return True
            except OSError as error:
                self._is_open = False
                broken = error
        self._end(_lost(broken))
        return False

    def close(self) -> None:
        """Closes the stream, once; queued data is dropped."""
        with self._lock:
            self._is_open = False
            self._unsent.clear()
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        os.eventfd_write(self._changed, 1)
        self._writer.join()
        self._socket.close()
        os.close(self._changed)

    def broken(self, unsent: Sequence[SendToPeer], error: ImbrexError) -> None:
        """Is told, once and in any thread, why the stream has broken, and what was not sent."""

    def _wait(self, action: SendToPeer, buffers: list[memoryview | bytes]) -> None:
        """Leaves the rest to the writer thread."""
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        patience_s = PATIENCE_S + size / SLOWEST_BYTES_PER_S
        self._unsent.append(_Unsent(action, buffers, time.monotonic(), patience_s))
        os.eventfd_write(self._changed, 1)

    def _watch(self) -> None:
        """Writes queued data in order as the socket accepts it; notices the end of the stream."""
        events = select.poll()
        events.register(self._changed, select.POLLIN)
        events.register(self._socket, select.POLLRDHUP)
        try:
            while True:
                with self._lock:
                    if not self._is_open:
                        return
                    first = self._unsent[0] if self._unsent else None
                events.modify(self._socket, select.POLLRDHUP | (select.POLLOUT if first else 0))
                self._await(events, first)
                if first is not None:
                    self._go_on(first)
        except OSError as error:
            with self._lock:
                was_open, self._is_open = self._is_open, False
            if was_open:  # otherwise the closing side has reported it
                self._end(_lost(error))

    def _await(self, events: select.poll, first: _Unsent | None) -> None:
        """Waits until the stream can be written or has ended.

        Raises:
            OSError: the stream has ended, or accepts nothing.
        """
        left_s = first.since_s + first.patience_s - time.monotonic() if first else None
        if left_s is not None and left_s <= 0:
            assert first is not None
            raise TimeoutError(f"it has not accepted a message for {first.patience_s:.0f} s")
        for number, what in events.poll(None if left_s is None else left_s * 1e3):
            if number == self._changed:
                os.eventfd_read(self._changed)
            elif what & ~select.POLLOUT:
                raise ConnectionResetError("it has closed the connection")

    def _go_on(self, first: _Unsent) -> None:
        with self._lock:
            if not self._unsent:
                return
            self._write(first.buffers)
            if not first.buffers:
                self._unsent.popleft()
                if self._unsent:
                    self._unsent[0].since_s = time.monotonic()

    def _end(self, error: ImbrexError) -> None:
        with self._lock:
            unsent = [item.action for item in self._unsent]
            self._unsent.clear()
        self.broken(unsent, error)

    def _write(self, buffers: list[memoryview | bytes]) -> None:
        """Writes what the socket accepts now, and removes it from `buffers`."""
        while buffers:
            try:
                taken = self._send_some(buffers)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            gone = 0
            while gone < len(buffers) and taken >= (size := memoryview(buffers[gone]).nbytes):
                taken -= size
                gone += 1
            del buffers[:gone]
            if taken:
                buffers[0] = memoryview(buffers[0]).cast("B")[taken:]

    def _send_some(self, buffers: list[memoryview | bytes]) -> int:
        if not isinstance(self._socket, ssl.SSLSocket):
            return self._socket.sendmsg(buffers[:_MOST_BUFFERS])
        if len(buffers) > 1 and memoryview(buffers[0]).nbytes < _JOINED_BYTES:
            joined, size = [], 0
            while buffers and size < _JOINED_BYTES:
                joined.append(buffers.pop(0))
                size += memoryview(joined[-1]).nbytes
            buffers.insert(0, b"".join(joined))
        return self._socket.send(buffers[0])


def connect(address: str, device: str, caller: Caller) -> socket.socket:
    """A stream to a device's data plane, non-blocking, its identity checked.

    Raises:
        LostWorker: no answer there, or from another device.
    """
    stream: socket.socket | None = None
    try:
        stream = connected(address)
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


def _lost(error: OSError, address: str = "a neighbour") -> LostWorker:
    return LostWorker(
        cause=f"the data stream to {address}: {error}",
        cure="Check that the worker is running and that its data port can be reached",
    )
