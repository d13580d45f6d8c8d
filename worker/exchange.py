"""Carries out what the task state decides: the one place where its actions become I/O."""

import asyncio
import itertools
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

import numpy as np
import structlog

from models.finite import is_finite
from protos import imbrex_pb2 as pb
from protos.channels import Caller
from protos.errors import ImbrexError, PeerViolation
from protos.failures import NotFinite, RunError, SendFailed
from protos.frames import decode
from worker.actions import Action, Discard, Failed, Run, SendToHost, SendToPeer, TaskKey
from worker.compute import Compute
from worker.engines.base import Ready
from worker.outbox import Outbox
from worker.peers import Peers
from worker.sessions import Sessions
from worker.tasks import Tasks
from worker.wire import (
    Message,
    box_of,
    done_item,
    failed_item,
    key_of,
    messages,
    output_specs,
    piece_of,
    task_spec,
)

# A probe longer than this measures nothing better and would hold up tensors behind it.
_MAX_PROBE_BYTES = 16 << 20
# What describes the tensors of a neighbour's message, 100 to 300 bytes each: the loop stands still
# while it is read, 10 ms for so much.
_MOST_PEER_HEADER_BYTES = 256 << 10

_log = structlog.get_logger()


class Exchange:
    """Streams, the task state, the compute thread and the peers of one worker; all its methods
    run on the event loop.
    """

    def __init__(
        self, tasks: Tasks, sessions: Sessions, compute: Compute, caller: Caller, version: str
    ) -> None:
        self.tasks = tasks
        self.tasks_run = 0
        self._sessions = sessions
        self._compute = compute
        self._peers = Peers(caller, version, self._not_sent)
        self._streams: dict[int, Outbox] = {}
        self._numbers = itertools.count(1)
        self._runs: dict[TaskKey, asyncio.Task[None]] = {}

    def open_stream(self) -> tuple[int, Outbox]:
        """A new Exchange stream: its number, and where its outgoing messages wait."""
        number, outbox = next(self._numbers), Outbox()
        self._streams[number] = outbox
        return number, outbox

    def close_stream(self, number: int) -> None:
        """The stream ended; tasks that came over it are not wanted any more."""
        self._streams.pop(number, None)
        self._apply(self.tasks.stream_closed(number))

    def receive(self, number: int, message: bytes) -> None:
        """Takes one message of a host.

        Raises:
            PeerViolation: it makes no sense, or is a worker's to send.
        """
        now = time.monotonic()
        for item, payload in decode(message):
            kind = item.WhichOneof("kind")
            if kind == "tensor":
                assert isinstance(payload, np.ndarray)
                self._apply(self.tasks.add_piece(piece_of(item.tensor, payload), now))
            elif kind == "ping":
                self._pong(number, item.ping, now)
            elif kind == "pong":
                continue
            else:
                self._apply(self._order(number, item, now))

    def receive_of_peer(self, sender: str, message: bytes) -> None:
        """Takes one message of a neighbour: tensors alone.

        Raises:
            PeerViolation: it makes no sense, or has what only a host may send.
        """
        now = time.monotonic()
        for item, payload in decode(message, _MOST_PEER_HEADER_BYTES):
            kind = item.WhichOneof("kind")
            if kind != "tensor":
                raise PeerViolation(
                    cause=f"a peer sent {kind!r}, which only a host may",
                    cure="Run the same version of imbrex on every device",
                )
            assert isinstance(payload, np.ndarray)
            # Kept pieces keep their message: it must not be much more than they are.
            small = 2 * payload.nbytes < len(message)
            piece = piece_of(item.tensor, payload.copy() if small else payload, sender)
            self._apply(self.tasks.add_piece(piece, now))

    def keep_peers(self, members: Collection[str]) -> None:
        """Ends the streams to devices that are not members."""
        self._peers.keep(members)

    async def reach(self, device: str, address: str) -> None:
        """Returns when a neighbour has answered over a connection of its own.

        Raises:
            ImbrexError: it does not answer, or is somebody else.
        """
        client, stream = await self._peers.connect(device, address)
        stream.cancel()
        await client.close()

    async def drain(self, timeout_s: float) -> None:
        """Lets running tasks finish, writes what waits, then ends every stream."""
        if self._runs:
            await asyncio.wait(self._runs.values(), timeout=timeout_s)
        for outbox in self._streams.values():
            outbox.close()

    async def close(self) -> None:
        """Ends everything that runs."""
        runs = list(self._runs.values())
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        await self._peers.close()

    def _order(self, number: int, item: pb.Item, now: float) -> list[Action]:
        """What only a host says."""
        kind = item.WhichOneof("kind")
        if kind == "task":
            return self.tasks.add_task(task_spec(item.task, number), now)
        if kind == "release":
            return self.tasks.release(item.release.requests)
        if kind == "cancel":
            order = item.cancel
            return self.tasks.cancel(order.request, order.task, order.attempt)
        if kind == "resend":
            outputs = output_specs(item.resend.outputs)
            return self.tasks.resend(key_of(item.resend), outputs, number, now)
        if kind == "show":
            show = item.show
            return self.tasks.show(key_of(show), show.tensor, box_of(show.box), number)
        raise PeerViolation(
            cause=f"a host sent {kind!r}, which only a worker may",
            cure="Run the same version of imbrex on every device",
        )

    def _apply(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Run():
                    run = asyncio.get_running_loop().create_task(self._run(action))
                    self._runs[action.key] = run
                    run.add_done_callback(partial(self._forget, action.key))
                case SendToHost(stream, pieces, done, more):
                    last = [done_item(done)] if done is not None else []
                    if pieces or not more:
                        self._write(stream, messages(pieces, last))
                    elif stream in self._streams:
                        self._streams[stream].add_with_next(last)
                case SendToPeer():
                    self._peers.send(action)
                case Failed(stream):
                    self._write(stream, [([failed_item(action)], [])])
                case Discard(key):
                    if key in self._runs:
                        self._runs[key].cancel()
                case _:
                    assert_never(action)

    def _write(self, stream: int, waiting: Iterable[Message]) -> None:
        outbox = self._streams.get(stream)
        if outbox is None:
            return
        try:
            outbox.add(waiting)
        except ImbrexError as error:
            _log.error("host does not read", cause=error.cause, cure=error.cure)
            outbox.close()

    async def _run(self, action: Run) -> None:
        shapes = {name: box.shape for name, box in action.yields.items()}

        def begin() -> Ready[dict[str, np.ndarray]]:
            bound = self._sessions.get(action.program).bound(action.inputs, shapes)
            return replace(bound, check=lambda made: _require_finite(made, action.passed))

        try:
            timed = await self._compute.run(begin)
        except ImbrexError as error:
            _log.warning("task failed", code=error.code, cause=error.cause)
            self._apply(self.tasks.failed(action.key, error.code, str(error)))
        except Exception as error:
            _log.exception("task failed for a reason of our own")
            self._apply(self.tasks.failed(action.key, RunError.code, repr(error)))
        else:
            self.tasks_run += 1
            self._apply(self.tasks.finished(action.key, timed.value, timed.start_s, timed.stop_s))

    def _forget(self, key: TaskKey, run: asyncio.Task[None]) -> None:
        if self._runs.get(key) is run:
            del self._runs[key]

    def _not_sent(self, action: SendToPeer, error: ImbrexError) -> None:
        _log.warning("pieces not sent", device=action.device, cause=error.cause)
        why = f"device {action.device} at {action.address}: {error}"
        self._apply(self.tasks.failed(action.source, SendFailed.code, why))

    def _pong(self, number: int, ping: pb.Ping, now: float) -> None:
        payload = bytes(min(ping.reply_bytes, _MAX_PROBE_BYTES))
        pong = pb.Ping(number=ping.number, sent_s=ping.sent_s, received_s=now)
        self._write(number, [([pb.Item(pong=pong)], [payload])])


def _require_finite(outputs: dict[str, np.ndarray], passed: Iterable[str]) -> None:
    """Raises NotFinite unless the outputs that nobody else checks are finite."""
    for name in passed:
        if not is_finite(outputs[name]):
            raise NotFinite(
                cause=f"the program made values of {name!r} that are not finite",
                cure="If only this device does, check its memory and its power supply",
            )
