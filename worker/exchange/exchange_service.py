"""The worker's gRPC service: checks requests and passes them to the parts that handle them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import grpc.aio
import structlog

from models.cut.program import Program
from models.tensors.memory import megabytes
from protos import imbrex_pb2 as pb
from protos.daemon.process_memory import resident_bytes
from protos.errors import BadRequest, ImbrexError, LostWorker, PeerViolation
from protos.rpc.channels import COORDINATOR_KEY, HOST, SENDER_KEY
from protos.rpc.direct import Direct, offer
from protos.rpc.serving import Context
from protos.status import STREAM_ENDED, fail, own_cancellation
from protos.wire import versions
from protos.wire.endpoint import Endpoint
from protos.wire.facts import DeviceId, Facts
from worker.compute.measure import Measurer, input_shape
from worker.compute.sessions import Sessions
from worker.engines.base import Engine
from worker.engines.processor import settle_thread
from worker.exchange.exchange import ResultQueue, TaskExchange
from worker.machine.advertise import Advertisement
from worker.machine.device_identity import facts
from worker.machine.machine import LocalMachine
from worker.peers.offers import Offers
from worker.programs.graphs import checked_model, program_of
from worker.programs.store import BlobStore
from worker.settings import WorkerSettings
from worker.trust.certificate import TrustUpdates
from worker.trust.coordinators_seen import Hosts

# One chunk of a blob is 1 MB; a message is 64 MB at most.
_MAX_BLOB_BYTES = 8 << 30
_MAX_STREAMS = 256
# More than a cluster has; each is a connection for up to two seconds.
_MAX_NEIGHBOURS = 64
# The name of callers that do not identify themselves, which is allowed without an authority.
_NOBODY = "unnamed"
# Bounds a coordinator's identification: an id and a host name, or an incarnation.
_MOST_NAME = 256

_log = structlog.get_logger()

Call = TypeVar("Call", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """The parts that handle the service's calls."""

    settings: WorkerSettings
    own_id: DeviceId
    version: str
    engine: Engine
    store: BlobStore
    sessions: Sessions
    measurer: Measurer
    exchange: TaskExchange
    endpoint: Endpoint
    trust: TrustUpdates
    hosts: Hosts
    advertisement: Advertisement
    data_port: int
    offers: Offers

    def facts(self) -> Facts:
        """The present facts of this worker."""
        return facts(self.settings, self.own_id, self.engine)


_FAULT = ImbrexError(cause="this failed inside its worker", cure="See the log of that worker.")


def _answers(method: Call) -> Call:
    """Turns an ImbrexError into the call's status, and any other exception into one that says where
    its traceback is.
    """

    @wraps(method)
    async def guarded(self: Any, request: Any, context: Context) -> Any:
        try:
            return await method(self, request, context)
        except ImbrexError as error:
            _log.warning("refused", call=method.__name__, code=error.code, cause=error.cause)
            fail(context, error)
        except Exception:
            _log.exception("failed inside imbrex", call=method.__name__)
            fail(context, _FAULT)
        return None

    return cast("Call", guarded)


class GrpcService:
    """Implements `protos.rpc.serving.WorkerService`."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        # Optimising takes a core for a while: one program at a time, beside the compute thread.
        # Sessions start their threads here, so they inherit this thread's niceness.
        self._preparing = ThreadPoolExecutor(1, "prepare", settle_thread, (parts.settings.nice,))
        self._streams = 0
        # By blob, while one arrives.
        self._putting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def close(self) -> None:
        """Waits for the program being prepared."""
        self._preparing.shutdown(wait=True, cancel_futures=True)

    @_answers
    async def hello(self, request: pb.HelloRequest, context: Context) -> pb.HelloReply:
        """Exchanges facts and protocol versions."""
        received_s = time.monotonic()
        caller = f"{request.sender or 'a caller'} (imbrex {request.version or '?'})"
        own = f"this worker (imbrex {self._parts.version})"
        protocol = versions.SPOKEN.answer(request.protocol, caller, own)
        others: list[str] = []
        generation = 0
        if _sender(context) == HOST:
            generation = self._parts.trust.learn(
                request.members, request.generation, request.coordinators
            )
            if request.coordinator:
                others = self._parts.hosts.greeted(
                    request.coordinator[:_MOST_NAME], request.incarnation[:_MOST_NAME], received_s
                )
        return pb.HelloReply(
            protocol=protocol,
            version=self._parts.version,
            facts=self._parts.facts().message(),
            received_s=received_s,
            counters={
                **self._parts.exchange.counts(),
                "messages": self._parts.endpoint.handled,
            },
            resident_bytes=resident_bytes(),
            coordinators=others,
            generation=generation,
            data_port=self._parts.data_port,
        )

    @_answers
    async def missing(self, request: pb.BlobQuery, context: Context) -> pb.BlobStatus:
        """Names the blobs that are not here."""
        return self._status(self._parts.store.missing(request.sha256))

    @_answers
    async def put(self, request: AsyncIterator[pb.BlobChunk], context: Context) -> pb.BlobStatus:
        """Takes one blob in chunks."""
        store, chunks = self._parts.store, aiter(request)
        first = await anext(chunks, pb.BlobChunk())
        sha256, total = first.sha256, first.total_bytes
        if not sha256:
            raise BadRequest(
                cause="a blob without a name arrived", cure="Name it in its first chunk"
            )
        if total > _MAX_BLOB_BYTES:
            raise BadRequest(cause=f"a blob of {megabytes(total)}", cure="Split such large weights")
        # Two coordinators may send the same weights at a time: the second then finds them here.
        async with self._putting.setdefault(sha256, asyncio.Lock()):
            if not store.missing([sha256]):
                return pb.BlobStatus()
            await asyncio.to_thread(store.append, sha256, first.offset, total, first.data)
            async for chunk in chunks:
                await asyncio.to_thread(store.append, sha256, chunk.offset, total, chunk.data)
            await asyncio.to_thread(store.complete, sha256, total)
        return self._status(store.missing([sha256]))

    @_answers
    async def prepare(self, request: pb.PrepareRequest, context: Context) -> pb.PrepareReply:
        """Prepares programs, if all weights are here. A program that fails does not keep the others
        from being prepared.
        """
        reply = pb.PrepareReply()
        good: list[Program] = []
        for message in request.programs:
            try:
                program = program_of(message)
                checked_model(program)
                good.append(program)
            except ImbrexError as error:
                reply.programs.add(program=message.sha256, error=str(error))
        loop = asyncio.get_running_loop()
        missing = await loop.run_in_executor(self._preparing, self._parts.sessions.missing, good)
        if missing:
            reply.missing.extend(missing)
            return reply
        for program in good:
            started = time.monotonic()
            try:
                await loop.run_in_executor(
                    self._preparing, self._parts.sessions.prepare, program, _coordinator(context)
                )
                failure = ""
            except ImbrexError as error:
                _log.warning("not prepared", program=program.sha256[:12], cause=error.cause)
                failure = f"{error.code}: {error}"
            seconds = time.monotonic() - started
            reply.programs.add(program=program.sha256, seconds=seconds, error=failure)
        return reply

    @_answers
    async def retain(self, request: pb.RetainRequest, context: Context) -> pb.RetainReply:
        """Drops the programs of this coordinator that it does not name."""
        named = list(request.programs)
        await asyncio.to_thread(self._parts.sessions.retain, named, _coordinator(context))
        return pb.RetainReply(resident_bytes=resident_bytes())

    @_answers
    async def measure(self, request: pb.MeasureRequest, context: Context) -> pb.MeasureReply:
        """Times a program."""
        own = self._parts.facts()
        program = program_of(request.program)
        inputs = [input_shape(i.tensor, i.data_type, i.dims) for i in request.inputs]
        allowed = [n for n in request.threads if 1 <= n <= own.cores] if own.pace == 1 else []
        measured = await self._parts.measurer.measure(
            program, inputs, request.repeats, request.at_most_s, allowed or [own.threads]
        )
        return pb.MeasureReply(
            seconds=measured.fastest.seconds,
            threads=measured.fastest.threads,
            resident_bytes=measured.resident_bytes,
            engines=[
                pb.EngineSeconds(engine=name, seconds=runs.seconds)
                for name, runs in measured.engines.items()
            ],
        )

    @_answers
    async def examine(self, request: pb.ExamineRequest, context: Context) -> pb.ExamineReply:
        """Reports the state of this machine, and which neighbours it reaches."""
        if len(request.neighbours) > _MAX_NEIGHBOURS:
            raise BadRequest(
                cause=f"the request names {len(request.neighbours)} neighbours",
                cure=f"Name at most {_MAX_NEIGHBOURS} at a time",
            )
        tried = (self._reach(other.device, other.address) for other in request.neighbours)
        condition = await asyncio.to_thread(
            LocalMachine().condition,
            self._parts.settings.state_dir,
            self._parts.advertisement.stands,
        )
        return pb.ExamineReply(
            condition=condition,
            reached=await asyncio.gather(*tried),
        )

    async def _reach(self, device: str, address: str) -> pb.ExamineReply.Reached:
        try:
            await self._parts.exchange.neighbours.reach(device, address)
        except ImbrexError as error:
            return pb.ExamineReply.Reached(device=device, error=error.cause)
        return pb.ExamineReply.Reached(device=device)

    @_answers
    async def renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewReply:
        """Renews the worker's certificate."""
        trust = self._parts.trust
        if not request.certificate:
            return pb.RenewReply(signing_request=trust.signing_request())
        trust.certify(request.certificate)
        return pb.RenewReply()

    async def exchange(self, _request: AsyncIterator[bytes], context: Context) -> None:
        """Exchanges frames until the caller ends the stream or this worker drains."""
        sender = _sender(context)
        if self._streams >= _MAX_STREAMS:
            context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
            context.set_details("too many streams")
            return
        self._streams += 1
        number, results = self._parts.exchange.open_stream()
        tasks: set[asyncio.Future[PeerViolation | None]] = set()
        try:
            with self._parts.offers.made() as offered:
                offering = offer(self._parts.data_port, offered.token) if sender == HOST else ()
                # Confirms the stream before there is anything to write.
                await context.send_initial_metadata(offering)
                parts = (
                    self._read(number, sender, context),
                    self._read(number, sender, offered.stream),
                    self._write(results, context, offered.stream),
                )
                tasks = {asyncio.ensure_future(part) for part in parts}
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                violation = next((error for task in done if (error := task.result())), None)
        finally:
            self._streams -= 1
            self._parts.exchange.close_stream(number)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if violation is not None:
            _log.warning("stream refused", sender=sender, cause=violation.cause)
            fail(context, violation)

    async def _read(
        self, number: int, sender: str, stream: Context | asyncio.Future[Direct]
    ) -> PeerViolation | None:
        """Reads what comes over the call, or over the direct stream once the host has opened it."""
        source = await stream if isinstance(stream, asyncio.Future) else stream
        while True:
            try:
                message = await source.read()
            except STREAM_ENDED:
                if own_cancellation():
                    raise
                return None
            except PeerViolation as violation:
                return violation
            if not isinstance(message, (bytes, memoryview)):
                return None
            await self._parts.endpoint.handle(len(message))
            try:
                if sender == HOST:
                    self._parts.exchange.receive(number, message)
                else:
                    self._parts.exchange.receive_of_peer(sender, message)
            except PeerViolation as violation:
                return violation

    async def _write(
        self, results: ResultQueue, context: Context, stream: asyncio.Future[Direct]
    ) -> None:
        """Writes what is queued: to the host's direct stream, once there is one."""
        try:
            while (message := await results.next()) is not None:
                await self._parts.endpoint.handle(sum(map(len, message)))
                if stream.done():
                    await stream.result().write(message)
                else:
                    await context.write(b"".join(message))
        except LostWorker:
            pass
        except STREAM_ENDED:
            if own_cancellation():
                raise

    def _status(self, missing: list[str]) -> pb.BlobStatus:
        have = self._parts.store.have_bytes
        blobs = [pb.BlobStatus.Blob(sha256=name, have_bytes=have(name)) for name in missing]
        return pb.BlobStatus(missing=blobs)


def _sender(context: Context) -> str:
    """The caller's id: a device, or the host."""
    sent = dict(context.invocation_metadata() or ()).get(SENDER_KEY)
    return str(sent or _NOBODY)


def _coordinator(context: Context) -> str:
    """The id of the coordinator that calls; empty if it does not say."""
    sent = dict(context.invocation_metadata() or ()).get(COORDINATOR_KEY)
    return str(sent or "")[:_MOST_NAME]
