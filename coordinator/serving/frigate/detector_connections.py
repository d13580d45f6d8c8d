"""Connections of detectors that are closed: what these still wait for is not computed further."""

from __future__ import annotations

import asyncio

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message


class DetectorConnections:
    """The messages of one socket that are being answered, by connection. A detector that has given
    up closes its connection; whoever is still there would wait behind its picture.
    """

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._closed = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._answering: dict[int, asyncio.Task[None]] = {}

    def answering(self, connection: int, task: asyncio.Task[None]) -> None:
        """The message that was last read of a connection is answered by `task`."""
        # The system gives a connection the number of one that was closed. ZeroMQ tells of that
        # before anything of the new one can be read.
        closed: zmq.Socket[bytes] = zmq.Socket.shadow(self._closed)
        while closed.poll(0):
            self._cancel(closed.recv_multipart())
        self._answering[connection] = task
        task.add_done_callback(lambda _: self._ended(connection, task))

    async def follow(self) -> None:
        """Cancels what nobody waits for any more, until it is cancelled itself."""
        while True:
            self._cancel(await self._closed.recv_multipart())

    def _cancel(self, told: list[bytes]) -> None:
        task = self._answering.pop(int(parse_monitor_message(told)["value"]), None)
        if task is not None:
            task.cancel()

    def _ended(self, connection: int, task: asyncio.Task[None]) -> None:
        if self._answering.get(connection) is task:
            del self._answering[connection]
