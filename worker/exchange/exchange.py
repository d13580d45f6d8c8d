"""Carries out the actions of the task state: the one place where they become I/O.

Events come from three sides, each in its own threads: hosts' messages (the event loop), halos
from neighbours (the data plane's readers) and ends of runs (the compute threads). Each thread
changes the state under a lock and then carries out the resulting actions itself: no lock is held
while anything is sent, received or computed.
"""

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

import numpy as np
import structlog

from protos import imbrex_pb2 as pb
from protos.daemon.process_memory import Rest
from protos.errors import ImbrexError, PeerViolation
from protos.failures import OutOfMemory, RunError, SendFailed
from protos.rpc.channels import Caller
from protos.wire.frames import Buffer, buffers, decode
from worker.compute.compute import Compute, ComputeJob, Timed
from worker.compute.sessions import Sessions
from worker.engines.base import Ready
from worker.peers.neighbours import Neighbours
from worker.peers.readers import FollowUp
from worker.tasks.actions import (
    Discard,
    Keep,
    OutwardAction,
    ReportFailure,
    RunProgram,
    SendToHost,
    SendToPeer,
    SetUp,
    TaskAction,
    TaskEnd,
    TaskKey,
    TensorPiece,
)
from worker.tasks.state import Tasks
from worker.tasks.task_items import (
    OutgoingMessage,
    box_of,
    done_item,
    failed_item,
    key_of,
    messages,
    output_specs,
    piece_of,
    task_order,
)

# A probe longer than this measures nothing better and would hold up tensors behind it.
_MAX_PROBE_BYTES = 16 << 20
# The header of a neighbour's message, 100 to 300 bytes per tensor: parsing this much blocks the
# event loop for 10 ms.
_MOST_PEER_HEADER_BYTES = 256 << 10
# Queued tensors are views of arrays that tasks keep anyway, so this caps bookkeeping, not memory.
MAX_WAITING = 16_384
# How long items without payload wait for a message to be sent with. The host needs them for its
# records and as a sign of life, before it would ask (half a second of silence).
HOLD_S = 0.3

_log = structlog.get_logger()


class ResultQueue:
    """The messages for one stream, in order; encoded only when the stream takes them. One task
    takes them; any code on the event loop may add some.
    """

    def __init__(self) -> None:
        self._waiting: deque[OutgoingMessage] = deque()
        self._held: deque[TaskEnd] = deque()
        self._will_flush = False
        self._changed = asyncio.Event()
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def add(self, messages: Iterable[OutgoingMessage]) -> None:
        """Queues messages; if the other side has stopped reading and the queue is full, ends it."""
        for message in messages:
            if len(self._waiting) >= MAX_WAITING:
                cause = f"{MAX_WAITING} messages wait for a peer that does not read"
                cure = "Check whether that daemon hangs, and restart it"
                _log.error("host does not read", cause=cause, cure=cure)
                self.close()
                return
            self._waiting.append(message)
        self._changed.set()

    def hold(self, done: TaskEnd) -> None:
        """Keeps the end of a task for the next message, since a separate one costs each side half a
        millisecond; if none follows for a while, sends it by itself. May be called in any thread.
        """
        self._held.append(done)
        is_first, self._will_flush = not self._will_flush, True
        if is_first:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._loop.call_later, HOLD_S, self._flush)

    def _flush(self) -> None:
        self._will_flush = False  # before looking: what is held from now on leads to another
        if self._held and not self._closed:
            self.add([([], [])])

    def close(self) -> None:
        """Ends the queue after the messages that wait."""
        self._closed = True
        self._changed.set()

    async def next(self) -> list[Buffer] | None:
        """The next message as buffers, with what is held; waits for one. None after the last."""
        while not self._waiting:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        items, payloads = self._waiting.popleft()
        held = [done_item(self._held.popleft()) for _ in range(len(self._held))]
        return buffers([*held, *items], payloads)


class TaskExchange:
    """Streams, the task state, the compute threads and the peers of one worker. Created on the
    event loop, where its methods run unless they say otherwise.
    """

    def __init__(
        self, tasks: Tasks, sessions: Sessions, compute: Compute, caller: Caller, version: str
    ) -> None:
        self._tasks = tasks
        self._tasks_run = 0
        self._computed_s = 0.0
        self._lock = threading.Lock()
        self._sessions = sessions
        self._compute = compute
        self.neighbours = Neighbours(caller, version, self._not_sent)
        self._streams: dict[int, ResultQueue] = {}
        self._numbers = itertools.count(1)
        self._runs: dict[TaskKey, ComputeJob] = {}
        self._idle: asyncio.Event | None = None  # what a drain waits for
        self._rest = Rest()
        # Bound once: binding it for a line takes longer than the rest of a task's end.
        self._log = _log.bind()

    def open_stream(self) -> tuple[int, ResultQueue]:
        """A new Exchange stream: its number and its queue."""
        number, results = next(self._numbers), ResultQueue()
        self._streams[number] = results
        return number, results

    def close_stream(self, number: int) -> None:
        """The stream has ended: cancels the tasks that came over it."""
        self._streams.pop(number, None)
        self._change(self._tasks.stream_closed, number)

    def receive(self, number: int, message: Buffer) -> None:
        """Handles one message of a host.

        Raises:
            PeerViolation: it is malformed, or only a worker may send it.
        """
        now, tasks = time.monotonic(), self._tasks
        payload: Any
        for item, payload in decode(message):
            kind = item.WhichOneof("kind")
            try:
                if kind == "tensor":
                    self._change(tasks.add_piece, piece_of(item.tensor, payload), now)
                elif kind == "task":
                    self._change(tasks.add_task, task_order(item.task, number), now)
                elif kind == "release":
                    self._change(tasks.release, item.release.requests)
                elif kind == "cancel":
                    order = item.cancel
                    self._change(tasks.cancel, order.request, order.task, order.attempt)
                elif kind == "resend":
                    outputs = output_specs(item.resend.outputs)
                    self._change(tasks.resend, key_of(item.resend), outputs, number)
                elif kind == "show":
                    show = item.show
                    self._change(tasks.show, key_of(show), show.tensor, box_of(show.box), number)
                elif kind == "ping":
                    self._pong(number, item.ping, now)
                elif kind != "pong":
                    raise PeerViolation(cause=f"a host sent {kind!r}, which only a worker may")
            except PeerViolation as violation:
                violation.request = getattr(getattr(item, kind), "request", "")
                raise

    def receive_of_peer(self, sender: str, message: Buffer) -> None:
        """Handles one message of a neighbour over gRPC, which holds only tensors.

        Raises:
            PeerViolation: it is malformed, or holds items that only a host may send.
        """
        for item, payload in decode(message, _MOST_PEER_HEADER_BYTES):
            kind = item.WhichOneof("kind")
            if kind != "tensor":
                raise PeerViolation(cause=f"a peer sent {kind!r}, which only a host may")
            assert isinstance(payload, np.ndarray)
            # A held piece keeps its whole message alive, so the message must not be much larger
            # than the piece.
            small = 2 * payload.nbytes < len(message)
            received = piece_of(item.tensor, payload.copy() if small else payload, sender)
            self._change(self._tasks.add_piece, received, time.monotonic())

    def receive_piece(self, piece: TensorPiece) -> FollowUp | None:
        """Handles a halo; may be called in any thread. Returns the run of the task that it has
        completed, for the calling thread to compute; None if another thread does, or none is
        complete.
        """
        job = self._change(self._tasks.add_piece, piece, time.monotonic(), here=True)
        return partial(self._compute.follow, job) if job is not None else None

    def counts(self) -> dict[str, int]:
        """Counts since the start: dropped frames by reason, messages to neighbours by transport,
        tasks run, milliseconds of computing them, whoever asked, and runs that other load slowed
        down further than the pace.
        """
        with self._lock:
            ran = {"tasks_run": self._tasks_run, "computed_ms": round(1e3 * self._computed_s)}
            ran["overruns"] = self._compute.throttle.overruns
            return {**self._tasks.dropped, **self.neighbours.sent, **ran}

    async def drain(self, timeout_s: float) -> None:
        """Lets running tasks finish, writes what is queued, then ends every stream."""
        self._idle = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._runs:
                    self._idle.clear()
                    await self._idle.wait()
        for results in self._streams.values():
            results.close()

    async def close(self) -> None:
        """Starts no more runs, and ends the streams to neighbours."""
        for job in list(self._runs.values()):
            job.is_wanted = False
        await self.neighbours.close()

    # ------------------------------------------------------------ in any thread

    def _change(
        self, change: Callable[..., list[TaskAction]], *about: Any, here: bool = False
    ) -> ComputeJob | None:
        """Passes an event to the state, and carries out the resulting actions. `here`: in a thread
        that may compute one of the resulting runs, which is returned if a core is free; the thread
        has then claimed it.
        """
        with self._lock:
            overflows = self._tasks.dropped["early_overflow"]
            try:
                actions = change(*about)
            except MemoryError as error:
                key = _key_in(about)
                if key is None:
                    raise
                short = f"no memory for its tensors: {error}"
                actions = self._tasks.failed(key, OutOfMemory.code, short)
            overflows -= self._tasks.dropped["early_overflow"]
        if overflows:
            self.neighbours.on_loop(self._rest.begin)
        following: ComputeJob | None = None
        for action in actions:
            may = here and following is None
            if isinstance(action, Keep):
                about = action.piece, time.monotonic()
                following = self._change(self._tasks.add_piece, *about, here=may) or following
            elif isinstance(action, RunProgram):
                begin, ended = partial(self._ready, action), partial(self._ended, action.key)
                job = self._runs[action.key] = ComputeJob(begin, ended)
                if may and self._compute.claim():
                    following = job
                else:
                    self._compute.submit(job)
            else:
                self._act(action)
        return following

    def _act(self, action: OutwardAction) -> None:
        """Carries out an action; the task fails whose outputs cannot be passed on."""
        source: TaskKey | None = None
        try:
            match action:
                case SetUp(request):
                    self._compute.errand(partial(self._set_up, request))
                case SendToPeer():
                    source = action.source
                    self.neighbours.send(action)
                case SendToHost():
                    source = action.pieces[0].key if action.pieces else None
                    self._send_to_host(action)
                case ReportFailure(stream):
                    if results := self._streams.get(stream):
                        self.neighbours.on_loop(results.add, [([failed_item(action)], [])])
                case Discard(key):
                    job = self._runs.pop(key, None)
                    if job is not None:
                        job.is_wanted = False
                case _:
                    assert_never(action)
        except Exception as error:
            _log.exception("an action failed")
            if source is None:
                raise
            code = OutOfMemory.code if isinstance(error, MemoryError) else RunError.code
            self._change(self._tasks.failed, source, code, repr(error))

    def _send_to_host(self, action: SendToHost) -> None:
        done, results = action.done, self._streams.get(action.stream)
        if results is None:
            return
        if action.pieces or not action.more:
            last = [done_item(done)] if done is not None else []
            self.neighbours.on_loop(results.add, list(messages(action.pieces, last)))
        elif done is not None:
            results.hold(done)

    def _set_up(self, request: str) -> None:
        """Sets up one task of a request early, and leaves the next for later. An error is reported
        when the task is run.
        """
        with suppress(Exception):
            with self._lock:
                run = self._tasks.next_to_set_up(request)
            if run is None:
                return
            self._ready(run)
        self._compute.errand(partial(self._set_up, request))

    def _ready(self, run: RunProgram) -> Ready[dict[str, np.ndarray]]:
        """The run, set up: once, early or at its turn."""
        ready: Ready[dict[str, np.ndarray]] | None = run.ready
        if ready is None:
            bound = self._sessions.get(run.program).bound(run.inputs, run.shapes)
            ready = run.ready = replace(bound, finite=run.checked)
        return ready

    def _ended(
        self, key: TaskKey, outcome: Timed[dict[str, np.ndarray]] | Exception
    ) -> ComputeJob | None:
        """Handles the end of a run, in the thread that ran it. Returns the run of the task that it
        has completed on this device, if this thread has claimed a core for it.
        """
        try:
            if not isinstance(outcome, Timed):
                self._failed(key, outcome)
                return None
            seconds = outcome.stop_s - outcome.start_s
            with self._lock:
                self._tasks_run += 1
                self._computed_s += seconds
            ms = round(seconds * 1e3, 1)
            self._log.debug("task computed", request=key.request, task=key.task, ms=ms)
            times = outcome.start_s, outcome.stop_s
            return self._change(self._tasks.finished, key, outcome.value, *times, here=True)
        finally:
            self._runs.pop(key, None)
            if self._idle is not None and not self._runs:
                self.neighbours.on_loop(self._idle.set)

    def _failed(self, key: TaskKey, error: Exception) -> None:
        if isinstance(error, MemoryError):
            error = OutOfMemory(
                cause=f"a task was out of memory: {error}",
                cure="Stop other programs on this device, or plan smaller tiles",
            )
        failed = {"request": key.request, "task": key.task}
        if isinstance(error, ImbrexError):
            _log.warning("task failed", **failed, code=error.code, cause=error.cause)
            self._change(self._tasks.failed, key, error.code, str(error))
        else:
            _log.error("task failed with an internal error", **failed, exc_info=error)
            self._change(self._tasks.failed, key, RunError.code, repr(error))

    def _not_sent(self, action: SendToPeer, error: ImbrexError) -> None:
        source = {"request": action.source.request, "task": action.source.task}
        _log.warning("pieces not sent", **source, device=action.device, cause=error.cause)
        why = f"device {action.device} at {action.address}: {error}"
        self._change(self._tasks.failed, action.source, SendFailed.code, why)

    # ------------------------------------------------------------ on the event loop

    def _pong(self, number: int, ping: pb.Ping, now: float) -> None:
        payload = bytes(min(ping.reply_bytes, _MAX_PROBE_BYTES))
        pong = pb.Ping(number=ping.number, sent_s=ping.sent_s, received_s=now)
        if results := self._streams.get(number):
            results.add([([pb.Item(pong=pong)], [payload])])


def _key_in(about: Sequence[Any]) -> TaskKey | None:
    """The task that an event is about: its key, or that of a task or piece, comes first."""
    first = about[0]
    key: TaskKey | None = first if isinstance(first, TaskKey) else getattr(first, "key", None)
    return key
