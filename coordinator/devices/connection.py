"""One connection to one worker: identity, frames, calls, and how its loss is noticed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Protocol, TypeVar

import numpy as np
import structlog

from coordinator.devices.announcements import Announcements, EngineSwitched
from coordinator.devices.handshake import clock_problem
from coordinator.devices.other_coordinators import Other, OthersShare
from coordinator.devices.outbox import Outbox
from coordinator.devices.pings import Pinger, PingPace, Probe, RoundTrip
from coordinator.devices.programs import Programs, UploadProgress
from coordinator.trust.roster import CONFIRM
from coordinator.trust.trust import Trust
from models.cut.program import BlobSource, Program
from protos import imbrex_pb2 as pb
from protos.errors import BadConfiguration, ImbrexError, LostWorker, PeerViolation
from protos.rpc.channels import is_loopback
from protos.rpc.worker_client import WorkerClient
from protos.wire import versions
from protos.wire.facts import DeviceId, Facts
from protos.wire.frames import Payload

PING_INTERVAL_S = 0.9
# A stalled worker (SIGSTOP, a cut cable) must be noticed within two seconds: two missed pings, and
# some tolerance for a late event loop.
LOST_AFTER_S = 1.9
# A timeout noticed this late is this process's own delay: messages may wait to be read.
_LATE_S = 0.25
# Period of reading what changes about a worker (frequency, counters, memory in use).
FACTS_INTERVAL_S = 10.0
CALL_TIMEOUT_S = 5.0
# A ping's payload may take this much longer per byte: usable links are faster than 0.8 Mbps.
_PING_BYTES_PER_S = 1e5

T = TypeVar("T")
log = structlog.get_logger(__name__)


class Receiver(Protocol):
    """Takes what devices send."""

    def received(
        self, device: DeviceId, item: pb.Item, payload: np.ndarray | memoryview | None
    ) -> bool:
        """An item of a device; returns whether it was for this one.

        Raises:
            PeerViolation: no device sends this; its connection ends.
        """
        ...


class Connection:
    """Created by `open`; lives while `run` does, or until `close`.

    It has two channels to the device: one for frames and calls, and one for pings alone. The
    `receiver` gets what the device sends. A switch of its engine is announced.
    """

    def __init__(
        self,
        address: str,
        trust: Trust,
        device: DeviceId,
        receiver: Receiver,
        announcements: Announcements,
    ) -> None:
        self.address, self.device = address, device
        self._client = WorkerClient(address, trust.caller, device)
        self.programs = Programs(self._client)
        self.outbox = Outbox(self.programs)
        self.counters: dict[str, int] = {}
        self.resident_bytes = 0
        self.version = ""
        self._control = WorkerClient(address, trust.caller, device)
        self._trust = trust
        self._stream = self._client.exchange()
        self._pings = self._control.exchange()
        self._pinger = Pinger(self._pings, address)
        self.clock = self._pinger.clock
        self._pace = PingPace(time.monotonic(), PING_INTERVAL_S, LOST_AFTER_S)
        self._receiver = receiver
        self._announcements = announcements
        self._facts: Facts | None = None
        self._protocol = 0
        # Other coordinators that the worker works for, strangers to this one.
        self.coordinators: tuple[Other, ...] = ()
        self.others = OthersShare()
        # The generation of the worker's list of members, if it is newer than this coordinator's.
        self.newer_members = 0
        self._told_newer = 0
        self._ended: asyncio.Future[ImbrexError] = asyncio.get_running_loop().create_future()
        self._members_changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"Connection({self.address!r}, device={self.device!r})"

    @classmethod
    async def open(
        cls,
        address: str,
        trust: Trust,
        receiver: Receiver,
        announcements: Announcements,
    ) -> Connection:
        """Connects and greets. From then on, only the device that answered is accepted.

        Raises:
            ImbrexError: no answer, another protocol version, or not a member of the cluster.
        """
        async with WorkerClient(address, trust.caller) as anybody:
            try:
                reply = await anybody.hello(version("imbrex"), CALL_TIMEOUT_S)
            except (LostWorker, BadConfiguration):
                credentials = trust.caller.credentials
                problem = await clock_problem(address, credentials) if credentials else None
                if problem is not None:
                    raise problem from None
                raise
        device = Facts.of(reply.facts).id
        trust.require_member(device, address)
        connection = cls(address, trust, device, receiver, announcements)
        try:
            await connection._greet(connection._client)
            await connection._go_direct()
            # It may have been removed meanwhile: a device decides how long its answers take.
            trust.require_member(device, address)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        """Ends the connection; pending calls raise LostWorker."""
        self._end(LostWorker(cause=f"the connection to {self.address} was closed", cure=_AGAIN))
        await self._client.close()
        await self._control.close()

    def tell_members(self) -> None:
        """Sends the worker the list of members, which has changed."""
        self._members_changed.set()

    @property
    def facts(self) -> Facts:
        """The latest facts that the worker told about itself."""
        assert self._facts is not None, "`open` sets them"
        return self._facts

    @property
    def is_loopback(self) -> bool:
        """Whether the worker is on this machine and cannot be reached from others."""
        return is_loopback(self.address.rpartition(":")[0])

    @property
    def last_seen_s(self) -> float:
        """When the last sign of life came from it, on this machine's monotonic clock."""
        return self._pace.heard_s

    @property
    def transfers(self) -> int:
        """Grows with each message, and as an upload begins and ends: a probe meanwhile was
        disturbed.
        """
        return self.outbox.taken + self.programs.transfers

    async def send(self, items: Sequence[pb.Item], payloads: Sequence[Payload] = ()) -> None:
        """Queues one message, which passes the letters in the outbox; waits while the queue is
        full. Payloads are read when the message leaves, and must not change before their request
        ends.

        Raises:
            LostWorker: the connection has ended; queued messages may or may not have arrived.
        """
        await self._while_alive(self.outbox.put((items, payloads)))

    async def ping(self, sent_bytes: int = 0, reply_bytes: int = 0) -> RoundTrip:
        """Measures one round trip with payloads of these sizes.

        Raises:
            LostWorker: no answer in time, or the connection ended.
        """
        timeout_s = LOST_AFTER_S + (sent_bytes + reply_bytes) / _PING_BYTES_PER_S
        return await self._while_alive(self._pinger.ping(timeout_s, sent_bytes, reply_bytes))

    async def probe(self) -> Probe:
        """Measures how long messages of several sizes take, in about a second.

        Raises:
            LostWorker: no answer in time, or the connection ended.
        """
        return await self._while_alive(self._pinger.probe(LOST_AFTER_S))

    async def ensure(
        self, programs: Sequence[Program], blobs: BlobSource, progress: UploadProgress | None = None
    ) -> None:
        """Returns when the programs can run there; errors as `Programs.ensure`."""
        if not all(program.sha256 in self.programs.ready for program in programs):
            await self._while_alive(self.programs.ensure(programs, blobs, progress))

    async def drop(self, programs: Iterable[str]) -> None:
        """Has the worker drop these programs.

        Raises:
            LostWorker: the connection ended.
        """
        await self._while_alive(self.programs.drop(programs))

    async def measure(
        self, request: pb.MeasureRequest, timeout_s: float | None = None
    ) -> pb.MeasureReply:
        """Times a program on random tensors, at the worker's emulated pace if it has one.

        Raises:
            ImbrexError: the worker cannot run it, or the connection ended.
        """
        return await self._while_alive(self._client.measure(request, timeout_s))

    async def unreachable(self, devices: Mapping[DeviceId, str]) -> frozenset[DeviceId]:
        """Which of these devices (ids with addresses) the worker cannot reach.

        Raises:
            ImbrexError: its version does not support this, it is late, or it has gone.
        """
        reply = await self.examine(devices, CALL_TIMEOUT_S)
        return frozenset(DeviceId(peer.device) for peer in reply.reached if peer.error)

    async def examine(self, devices: Mapping[DeviceId, str], timeout_s: float) -> pb.ExamineReply:
        """The worker's condition, and which of these devices (ids with addresses) it reaches.

        Raises:
            ImbrexError: its version does not support this, it is late, or it has gone.
        """
        neighbours = {str(device): address for device, address in devices.items()}
        return await self._while_alive(self._client.examine(neighbours, timeout_s))

    # ------------------------------------------------------------ running

    async def run(self) -> ImbrexError:
        """Exchanges frames until the connection fails; returns why it did."""
        parts = (self._read(), self._write(), self._pinger.read(), self._watch(), self._refresh())
        try:
            async with asyncio.TaskGroup() as group:
                for part in parts:
                    group.create_task(part)
        except* ImbrexError as errors:
            reason = errors.exceptions[0]
            assert isinstance(reason, ImbrexError)
            self._end(reason)
        except* Exception as errors:
            log.exception("a connection failed inside imbrex", address=self.address)
            self._end(LostWorker(cause=repr(errors.exceptions[0]), cure="Report this"))
        return self._ended.result()

    async def _read(self) -> None:
        while True:
            received = await self._stream.read()
            self._pace.heard_s = time.monotonic()
            for item, payload in received:
                self._receiver.received(self.device, item, payload)

    async def _write(self) -> None:
        while True:
            await self._stream.write(*await self.outbox.next())

    async def _watch(self) -> None:
        """Notices a worker that is silent: any frame is a sign of life, otherwise it is pinged. If
        this event loop itself stood still (a large model is loaded), it pings once more.
        """
        while True:
            asked_s = time.monotonic()
            patience_s = self._pace.patience_s(asked_s)
            try:
                await self._pinger.ping(patience_s)
            except LostWorker:
                if time.monotonic() < asked_s + patience_s + _LATE_S:
                    raise
                continue
            self._pace.answered(time.monotonic())
            await self._until_ping_is_due()

    async def _until_ping_is_due(self) -> None:
        wait_s = self._pace.wait_s(time.monotonic())
        while wait_s > 0:
            await asyncio.sleep(wait_s)
            wait_s = self._pace.wait_s(time.monotonic())

    async def _refresh(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FACTS_INTERVAL_S):
                    await self._members_changed.wait()
            self._members_changed.clear()
            # Only pings decide whether it is alive: a late answer here means nothing.
            with suppress(LostWorker):
                before = self.facts.fingerprint
                await self._greet(self._control)
                if self.facts.fingerprint != before:
                    self._announcements.announce(EngineSwitched(self.device))
                await self._trust.keep_valid(self.device, self._control)

    async def _greet(self, client: WorkerClient) -> None:
        trust = self._trust
        # Read before the lists: an older list under a newer number would last.
        generation, members = trust.generation, sorted(trust.members() or ())
        coordinators = sorted(trust.coordinators())
        self._take(
            await client.hello(version("imbrex"), CALL_TIMEOUT_S, members, generation, coordinators)
        )
        if self.newer_members:
            await asyncio.to_thread(trust.note_newer, self.newer_members)

    async def _go_direct(self) -> None:
        """Sends frames past gRPC from now on, if possible, and pings, too, so that they measure the
        path that messages take.
        """
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                for stream in (self._stream, self._pings):
                    await stream.go_direct(self.device, self._trust.caller.credentials)
        except (LostWorker, TimeoutError) as error:
            log.warning(
                "tensors go over gRPC, which is slower", address=self.address, why=str(error)
            )

    @property
    def shows(self) -> bool:
        """Whether the worker can be asked for what its peers sent."""
        return self._protocol >= versions.SHOWS

    def _take(self, reply: pb.HelloReply) -> None:
        self._protocol = reply.protocol
        own = self._trust.caller.coordinator
        own_id = own.partition(" ")[0]
        ours = self._trust.coordinators()
        others = tuple(
            sorted(
                Other.of(other, own)
                for other in reply.coordinators
                if other.partition(" ")[0] not in ours or other.partition(" ")[0] == own_id
            )
        )
        if others and others != self.coordinators:
            log.warning(
                "the device also works for other coordinators",
                address=self.address,
                coordinators=[str(other) for other in others],
            )
        self.coordinators = others
        newer = reply.generation if reply.generation > self._trust.generation else 0
        # Where coordinators share their lists, a change may be on its way to this one.
        late = newer if newer == self._told_newer else 0
        self._told_newer = newer
        if late and late != self.newer_members:
            log.warning(
                "the device has a newer list of members and rejects this coordinator's",
                address=self.address,
                ours=self._trust.generation,
                newest=newer,
                cure=CONFIRM,
            )
        self.newer_members = late
        facts = Facts.of(reply.facts)
        if self._facts is not None and facts.id != self._facts.id:
            raise PeerViolation(
                cause=f"{self.address} was device {self._facts.id}, and is {facts.id} now",
                cure="Give every worker its own port and state_dir",
            )
        self._facts, self.version = facts, reply.version
        self.counters, self.resident_bytes = dict(reply.counters), int(reply.resident_bytes)
        computed_s = 1e-3 * self.counters.get("computed_ms", 0)
        self.others.told(computed_s, bool(reply.coordinators), facts.concurrency, time.monotonic())

    def _end(self, reason: ImbrexError) -> None:
        if not self._ended.done():
            self._ended.set_result(reason)
            self.outbox.clear()

    async def _while_alive(self, work: Awaitable[T]) -> T:
        """The result of `work`; raises LostWorker as soon as the connection has ended."""
        doing = asyncio.ensure_future(work)
        try:
            if not self._ended.done():
                await asyncio.wait((doing, self._ended), return_when=asyncio.FIRST_COMPLETED)
            # gRPC reports calls on a closed channel as cancelled, which the caller did not ask for.
            if doing.done() and not doing.cancelled():
                return doing.result()
            reason = await asyncio.shield(self._ended)
            raise LostWorker(cause=reason.cause, cure=reason.cure)
        finally:
            doing.cancel()


_AGAIN = "The coordinator keeps trying; check that the worker is running"
