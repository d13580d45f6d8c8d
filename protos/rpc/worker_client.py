"""A worker as its callers see it: the unary calls, and one Exchange stream of frames."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from protos import imbrex_pb2 as pb
from protos.errors import LostWorker, PeerViolation, StreamRefused, WorkerStopped
from protos.rpc.channels import Caller, make_channel
from protos.rpc.direct import Direct, accept_offer
from protos.rpc.serving import EXCHANGE, SERVICE, UNARY
from protos.status import STREAM_ENDED, error_from, own_cancellation
from protos.trust.credentials import Credentials
from protos.trust.identity import WORKER_NAME, device_name
from protos.wire import versions
from protos.wire.endpoint import Endpoint
from protos.wire.frames import Payload, ReceivedItem, buffers, decode

# Weights travel in chunks of this size: large enough for full speed, small enough that a
# resumed transfer repeats little.
CHUNK_BYTES = 1 << 20

_HELLO_TIMEOUT_S = 5.0
# The header of a worker's message, some hundred bytes per item; parsed, it takes many times that.
_MOST_HEADER_BYTES = 4 << 20


class ExchangeStream:
    """Frames to and from one worker, over a call. One task may write while another reads."""

    def __init__(self, call: Any, address: str, endpoint: Endpoint) -> None:
        self._call = call
        self._address = address
        self._endpoint = endpoint
        self._direct: Direct | None = None

    async def go_direct(self, device: str, credentials: Credentials | None) -> None:
        """Sends frames over a direct stream from now on, if the worker (`device`) offers one. Call
        it before anything is written.

        Raises:
            LostWorker: the stream it offers cannot be reached; frames go over the call.
            ImbrexError: the call is broken.
        """
        try:
            metadata = await self._call.initial_metadata()
        except STREAM_ENDED as failure:
            raise await self._reason(failure) from failure
        self._direct = await accept_offer(metadata, self._address, device, credentials)
        if self._direct is not None:
            self._call.add_done_callback(self._call_ended)

    @property
    def is_direct(self) -> bool:
        """Whether frames go over a direct stream instead of gRPC."""
        return self._direct is not None

    def _call_ended(self, call: Any) -> None:
        """What the worker sent before it ended the call can still be read."""
        assert self._direct is not None
        self._direct.close()

    async def write(self, items: Sequence[pb.Item], payloads: Sequence[Payload] = ()) -> None:
        """Sends one message; waits while the stream's flow control is full.

        Raises:
            ImbrexError: the stream is broken (`LostWorker`, or the worker's own error).
        """
        message = buffers(items, payloads)
        await self._endpoint.handle(sum(map(len, message)), items)
        if self._direct is not None:
            try:
                await self._direct.write(message)
            except LostWorker as broken:
                reason = await self._end()
                raise broken if isinstance(reason, WorkerStopped) else reason from None
            return
        try:
            await self._call.write(b"".join(message))
        except STREAM_ENDED as failure:
            raise await self._reason(failure) from failure

    async def read(self) -> list[ReceivedItem]:
        """The items of the next message.

        Raises:
            WorkerStopped: the worker ended the stream.
            ImbrexError: the stream is broken, or the message is malformed (`PeerViolation`).
        """
        try:
            message = await (self._call if self._direct is None else self._direct).read()
        except STREAM_ENDED as failure:
            raise await self._reason(failure) from failure
        if isinstance(message, (bytes, memoryview)):
            await self._endpoint.handle(len(message))
            return decode(message, _MOST_HEADER_BYTES)
        raise await self._end()  # None or grpc.aio.EOF is the end of the stream

    async def _end(self) -> BaseException:
        """Why the stream has ended, by the call's status."""
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                code = await self._call.code()
        except TimeoutError:
            return LostWorker(cause=f"{self._address} has closed the stream", cure="Connect again")
        if code is grpc.StatusCode.OK:
            return WorkerStopped(
                cause=f"{self._address} ended the connection",
                cure="The coordinator keeps trying; check that the worker is running",
            )
        return await self._reason(None)

    async def done_writing(self) -> None:
        """Half-closes the stream: nothing more is sent; answers may still arrive."""
        try:
            await self._call.done_writing()
        except STREAM_ENDED as failure:
            raise await self._reason(failure) from failure

    def cancel(self) -> None:
        """Ends the stream at once; waiting readers and writers see `LostWorker`."""
        self._call.cancel()
        if self._direct is not None:
            self._direct.abort()

    async def _reason(self, failure: BaseException | None) -> BaseException:
        """Why the stream has ended; `failure` is what was raised, if anything was."""
        if isinstance(failure, asyncio.CancelledError) and own_cancellation():
            return failure
        if not isinstance(failure, grpc.aio.AioRpcError):
            failure = await self._failure()
        error = error_from(failure, self._address)
        if isinstance(error, PeerViolation):
            return StreamRefused(cause=error.cause, cure=error.cure, request=error.request)
        return error

    async def _failure(self) -> grpc.aio.AioRpcError:
        call = self._call
        return grpc.aio.AioRpcError(
            await call.code(),
            await call.initial_metadata(),
            await call.trailing_metadata(),
            details=await call.details(),
            debug_error_string=None,
        )


class WorkerClient:
    """Calls of one worker through one channel. Every failure is an `ImbrexError`.

    With credentials, the worker that answers must be `device`, or any worker of the cluster if
    `device` is empty.
    """

    def __init__(self, address: str, caller: Caller, device: str = "") -> None:
        self.address = address
        self._caller = caller
        name = device_name(device) if device else WORKER_NAME
        self._channel = make_channel(address, caller.credentials, name)
        self._calls: dict[str, Any] = {}
        for name, (request, response, streamed) in UNARY.items():
            make: Any = self._channel.stream_unary if streamed else self._channel.unary_unary
            self._calls[name] = make(
                f"/{SERVICE}/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
        channel: Any = self._channel
        self._exchange: Any = channel.stream_stream(EXCHANGE)

    def __repr__(self) -> str:
        return f"WorkerClient({self.address!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the channel; calls in flight are cancelled."""
        await self._channel.close(None)

    async def hello(
        self,
        version: str,
        timeout_s: float = _HELLO_TIMEOUT_S,
        members: Sequence[str] = (),
        generation: int = 0,
        coordinators: Sequence[str] = (),
    ) -> pb.HelloReply:
        """Greets the worker and returns its facts. Under TLS, the host also sends the lists of the
        cluster's devices and coordinators, and their generation.

        Raises:
            PeerViolation: the worker and we have no protocol version in common.
            LostWorker: no answer within `timeout_s`.
        """
        request = pb.HelloRequest(
            protocol=versions.SPOKEN.newest,
            version=version,
            sender=self._caller.sender,
            sent_s=time.monotonic(),
            members=members,
            coordinator=self._caller.coordinator,
            incarnation=self._caller.incarnation,
            generation=generation,
            coordinators=coordinators,
        )
        reply: pb.HelloReply = await self._call("Hello", request, timeout_s)
        versions.SPOKEN.require(reply.protocol, self.address)
        return reply

    async def missing(
        self, hashes: Sequence[str], timeout_s: float | None = None
    ) -> dict[str, int]:
        """The hashes that the worker lacks -> bytes of each that it already has."""
        status: pb.BlobStatus = await self._call("Missing", pb.BlobQuery(sha256=hashes), timeout_s)
        return {blob.sha256: blob.have_bytes for blob in status.missing}

    async def put(
        self,
        sha256: str,
        parts: Iterable[memoryview | bytes],
        total_bytes: int,
        offset: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """Sends one blob of `total_bytes`: the bytes from `offset` on (as `missing` returned), in
        chunks of at most `CHUNK_BYTES`, each taken from the iterator when the previous one has been
        sent.
        """
        await self._call("Put", _chunks(sha256, parts, total_bytes, offset), timeout_s)

    async def prepare(
        self, programs: Sequence[pb.Program], timeout_s: float | None = None
    ) -> pb.PrepareReply:
        """Prepares programs. Call it before `missing`: a worker that has kept the optimised form of
        a program needs no weights; the reply names the weights that it does need.
        """
        reply: pb.PrepareReply = await self._call(
            "Prepare", pb.PrepareRequest(programs=programs), timeout_s
        )
        return reply

    async def retain(self, programs: Sequence[str], timeout_s: float | None = None) -> int:
        """Drops all other programs; returns the bytes of memory in use on the worker."""
        reply = await self._call("Retain", pb.RetainRequest(programs=programs), timeout_s)
        return int(reply.resident_bytes)

    async def measure(
        self, request: pb.MeasureRequest, timeout_s: float | None = None
    ) -> pb.MeasureReply:
        """Times a program on random tensors, under the worker's pace."""
        reply: pb.MeasureReply = await self._call("Measure", request, timeout_s)
        return reply

    async def examine(
        self, neighbours: Mapping[str, str], timeout_s: float | None = None
    ) -> pb.ExamineReply:
        """The state of the device's machine, and which of `neighbours` (id -> address) it can
        reach.
        """
        request = pb.ExamineRequest(
            neighbours=[
                pb.ExamineRequest.Neighbour(device=device, address=address)
                for device, address in neighbours.items()
            ]
        )
        reply: pb.ExamineReply = await self._call("Examine", request, timeout_s)
        return reply

    async def signing_request(self, timeout_s: float | None = None) -> bytes:
        """A request for a new certificate of the worker."""
        reply: pb.RenewReply = await self._call("Renew", pb.RenewRequest(), timeout_s)
        return bytes(reply.signing_request)

    async def certify(self, certificate_pem: bytes, timeout_s: float | None = None) -> None:
        """Gives the worker the certificate for its last signing request."""
        await self._call("Renew", pb.RenewRequest(certificate=certificate_pem), timeout_s)

    def exchange(self) -> ExchangeStream:
        """A new stream of frames; the call connects when first used."""
        call = self._exchange(metadata=self._caller.metadata)
        return ExchangeStream(call, self.address, self._caller.endpoint)

    async def _call(self, name: str, request: Any, timeout_s: float | None) -> Any:
        try:
            return await self._calls[name](
                request, timeout=timeout_s, metadata=self._caller.metadata
            )
        except grpc.aio.AioRpcError as failure:
            raise error_from(failure, self.address) from failure
        except grpc.aio.UsageError as failure:
            raise LostWorker(
                cause=f"the channel to {self.address} is closed", cure="Connect again"
            ) from failure


async def _chunks(
    sha256: str, parts: Iterable[memoryview | bytes], total_bytes: int, offset: int
) -> AsyncIterator[pb.BlobChunk]:
    # The first chunk only names the blob, as there may be no bytes to send.
    yield pb.BlobChunk(sha256=sha256, total_bytes=total_bytes, offset=offset)
    for part in parts:
        yield pb.BlobChunk(offset=offset, data=bytes(part))
        offset += len(part)
