"""gRPC calls whose message is read only once the caller is admitted and there is a place for it.

gRPC reads the whole message of a unary call before it runs the method. A method that takes a stream
is run at once, and the caller's data stays within one flow-control window until the method reads
it. So every method is registered as one that takes a stream; clients see no difference.

Raw tensors keep their size, but everything else grows: two bytes on the wire can be an empty
message that takes seventy in memory. A walk over the outermost fields of protobuf's wire format
finds their number, and the bytes that are not raw tensors, before a message is parsed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from io import BytesIO
from itertools import islice
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError
from starlette.datastructures import Headers

from coordinator.serving.common.access import (
    Access,
    AccessRule,
    asks,
    open_to_all,
    orders,
    rule_of,
    shown_key,
)
from coordinator.serving.common.body import (
    BODIES_HELD,
    BODY_S,
    MOST_BODIES,
    BodyMemory,
    Reservation,
    json_too_large,
)
from coordinator.serving.common.errors import SlowBody
from coordinator.serving.common.keys import NoKey, NotAllowed, neighbourhood
from models.onnx_file.wire_scan import LENGTH, BufferedFile
from protos.errors import BadRequest, ImbrexError
from protos.rpc.gates import Gate, RpcHandler
from protos.rpc.serving import Context
from protos.status import abort, fail

SERVICE = "inference.GRPCInferenceService"
# A request's messages apart from its tensors.
ENVELOPE_BYTES = 1 << 20
# Memory per byte of a message: itself while it is parsed, and its tensors as bytes.
_COPIES = 2
# Concurrent calls; each may hold one message of the largest size.
MOST_STREAMS = 8
_HEALTH = "/grpc.health.v1.Health/"
_STREAM = f"/{SERVICE}/ModelStreamInfer"
_WITH_TENSORS = frozenset({f"/{SERVICE}/ModelInfer", _STREAM})
# Calls with an empty request; so is that of health, which is answered alike for every service.
_EMPTY = frozenset(f"/{SERVICE}/{name}" for name in ("ServerLive", "ServerReady", "ServerMetadata"))

log = structlog.get_logger(__name__)
# A model has a few inputs and outputs, and a request a few parameters.
MOST_FIELDS = 1024
_INPUTS, _OUTPUTS, _RAW = 5, 6, 7  # of ModelInferRequest


class Reading(Gate):
    """Runs before every method: checks the caller, its rate, and whether there is a place for its
    message.
    """

    def __init__(
        self, access: Access, max_body_bytes: int, max_json_bytes: int, floor_bytes_per_s: float
    ) -> None:
        self.most_bytes = max_body_bytes + ENVELOPE_BYTES
        self._access = access
        self._max_json_bytes = max_json_bytes
        # gRPC does not tell how much of a message has arrived: one that is not complete after the
        # window of `BodyMemory` counts as slow.
        floor = float("inf") if floor_bytes_per_s else 0.0
        self._messages = BodyMemory(BODIES_HELD * self.most_bytes, MOST_BODIES, floor)
        self._streams = BodyMemory(MOST_STREAMS, MOST_STREAMS, 0.0)

    def guarded(self, handler: RpcHandler, details: grpc.HandlerCallDetails) -> RpcHandler:
        """The method, wrapped so that gRPC reads nothing before it runs."""
        method, rule = details.method, _rule(handler, details.method)
        if method in _EMPTY or method.startswith(_HEALTH):
            return self._unread(handler, method, rule)
        if handler.request_streaming:
            return self._stream(handler, method, rule)
        return self._single(handler, method, rule)

    def _unread(self, handler: Any, method: str, rule: AccessRule) -> RpcHandler:
        parse = handler.request_deserializer or bytes
        if handler.response_streaming:

            async def stream(_messages: Any, context: Context) -> None:
                await self._admit(context, method, rule)
                await _write(handler.unary_stream(parse(b""), context), context)

            return grpc.stream_stream_rpc_method_handler(stream, None, handler.response_serializer)

        async def single(_messages: Any, context: Context) -> Any:
            await self._admit(context, method, rule)
            return await handler.unary_unary(parse(b""), context)

        return grpc.stream_unary_rpc_method_handler(single, None, handler.response_serializer)

    def _single(self, handler: Any, method: str, rule: AccessRule) -> RpcHandler:
        async def call(_messages: Any, context: Context) -> Any:
            caller = await self._admit(context, method, rule)
            reserved: Reservation | None = None
            data = b""
            try:
                reserved, data = await self._read(caller, context)
                message = self._parsed(handler, method, data)
                data = b""
            except ImbrexError as error:
                if reserved is not None:
                    reserved.free()
                fail(context, error)
                return None
            try:
                return await handler.unary_unary(message, context)
            finally:
                reserved.free()

        return grpc.stream_unary_rpc_method_handler(call, None, handler.response_serializer)

    def _stream(self, handler: Any, method: str, rule: AccessRule) -> RpcHandler:
        async def parsed(context: Context) -> AsyncIterator[Any]:
            while (data := await _next(context)) is not None:
                try:
                    message = self._parsed(handler, method, data)
                except ImbrexError as error:
                    await abort(context, error)
                yield message

        async def call(_messages: Any, context: Context) -> None:
            caller = await self._admit(context, method, rule)
            try:
                reserved = await self._streams.reserve(caller, 1)
            except ImbrexError as error:
                await abort(context, error)
            try:
                await _write(handler.stream_stream(parsed(context), context), context)
            finally:
                reserved.free()

        return grpc.stream_stream_rpc_method_handler(call, None, handler.response_serializer)

    async def _admit(self, context: Context, method: str, rule: AccessRule) -> str:
        """The caller's name; ends the call if the caller is refused."""
        sent = {key: str(value) for key, value in context.invocation_metadata() or ()}
        shown, host = shown_key(Headers(sent)), host_of(context.peer())
        if rule.role is None:
            return host
        try:
            address = neighbourhood(host)
            return self._access.admit(shown, rule.role, address, counted=method != _STREAM)
        except (NoKey, NotAllowed) as error:
            log.warning("caller refused", caller=context.peer(), call=method, cause=error.cause)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        except ImbrexError as error:
            await abort(context, error)
        raise AssertionError("abort returned")

    async def _read(self, caller: str, context: Context) -> tuple[Reservation, bytes]:
        """The single message of a call, and its memory.

        Raises:
            Unavailable: there is no room for it.
            BadRequest: there is no message, or it came too slowly.
        """
        reserved = await self._messages.reserve(caller, self.most_bytes)
        try:
            try:
                async with asyncio.timeout(BODY_S) as reserved.reading:
                    data = await _next(context)
            except TimeoutError:
                raise SlowBody(
                    cause="the message came too slowly", cure="Send it faster, or a smaller one"
                ) from None
            finally:
                reserved.reading = None
            if data is None:
                raise BadRequest(cause="the call has no message", cure="Send one")
        except BaseException:
            reserved.free()
            raise
        reserved.settle(_COPIES * len(data))
        return reserved, data

    def _parsed(self, handler: Any, method: str, data: bytes) -> Any:
        """The parsed message.

        Raises:
            BadRequest: it is malformed, or would be far larger in memory than on the wire.
        """
        if method in _WITH_TENSORS:
            require_bounded(data, self._max_json_bytes)
        else:
            require_small(data, ENVELOPE_BYTES)
        try:
            return (handler.request_deserializer or bytes)(data)
        except Exception:
            raise _no_message() from None


def _rule(handler: Any, method: str) -> AccessRule:
    """The rule of a call; gRPC's own services change nothing."""
    if method.startswith(_HEALTH):
        return open_to_all
    if not method.startswith(f"/{SERVICE}/"):
        return asks
    serve = handler.stream_stream if handler.request_streaming else handler.unary_unary
    return rule_of(serve) or orders


def host_of(peer: str) -> str:
    """The address in gRPC's notation: `ipv4:127.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
    return unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")


async def _write(answers: AsyncIterator[Any] | Awaitable[None], context: Context) -> None:
    """Writes what a method yields; a method that writes by itself is only awaited."""
    if isinstance(answers, Awaitable):
        await answers
        return
    async for answer in answers:
        await context.write(answer)


async def _next(context: Context) -> bytes | None:
    """The next message of a call; None after the last. gRPC's own iterator would keep the last
    message alive as long as nobody asks for another.
    """
    data: Any = await context.read()
    end: Any = grpc.aio.EOF  # type: ignore[attr-defined, unused-ignore]
    return None if data is end else data


def require_bounded(data: bytes, most_typed_bytes: int) -> None:
    """Refuses a ModelInferRequest that would become far larger in memory.

    Raises:
        BadRequest: it has too many fields, or is malformed.
        BodyTooLarge: too many bytes of it are not raw tensors.
    """
    message, typed, count = BufferedFile(BytesIO(data), len(data)), len(data), 0
    try:
        for field in message.fields(message.whole):
            count += 1
            if field.wire_type == LENGTH and field.number == _RAW:
                typed -= field.size
            elif field.wire_type == LENGTH and field.number in (_INPUTS, _OUTPUTS):
                count += sum(1 for _ in islice(message.fields(field), MOST_FIELDS))
            if count > MOST_FIELDS:
                raise BadRequest(
                    cause=f"the message has more than {MOST_FIELDS} fields",
                    cure="Send tensors packed, or as raw_input_contents",
                )
    except DecodeError:
        raise _no_message() from None
    if typed > most_typed_bytes:
        raise json_too_large(most_typed_bytes)


def require_small(data: bytes, most_bytes: int) -> None:
    """Refuses a large message that cannot contain tensors.

    Raises:
        BadRequest: it is too large.
    """
    if len(data) > most_bytes:
        raise BadRequest(
            cause=f"the message has {len(data)} bytes although it carries no tensor",
            cure="Send the message that inference.proto defines for this call",
        )


def _no_message() -> BadRequest:
    return BadRequest(
        cause="the message cannot be read", cure="Send one as inference.proto defines it"
    )
