"""Places that are taken and not used (H3, H4, H10)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress

import grpc
import grpc.aio
import httpx

from benchmarks.hostile.attacks import ELSEWHERE, MB, Happened, Target, attack
from protos import inference_pb2 as pb

# Long enough that places go to who waits, and that the flood comes again.
DRIPPING_S = 14.0
# A byte each time: the attack is to be this slow.
DRIP_S = 1.0
_FORM = "Content-Type: multipart/form-data; boundary=x\r\n"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
_PART = b'--x\r\nContent-Disposition: form-data; name="image"; filename="i"\r\n\r\n'


def _dripped(target: Target, path: str, senders: int, own: str, more: str = "") -> Happened:
    """Bodies that announce 64 MiB and come a byte at a time; who is hung up on comes again."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {64 * MB}\r\n{more}\r\n"
    ends: Counter[str] = Counter()
    deadline = time.monotonic() + DRIPPING_S
    lines: list[socket.socket] = []
    while time.monotonic() < deadline:
        while len(lines) < senders:
            line = socket.create_connection(("127.0.0.1", target.port), 10, (own, 0))
            line.sendall(head.encode() + (_PART if more else b"x"))
            line.setblocking(False)
            lines.append(line)
        time.sleep(DRIP_S)
        for line in list(lines):
            try:
                line.send(b"x")
                answer = line.recv(200)
            except BlockingIOError:
                continue
            except OSError:
                answer = b""
            ends[answer[9:12].decode() or "hung up"] += 1
            line.close()
            lines.remove(line)
    for line in lines:
        line.close()
    told = ", ".join(f"{count} x {end}" for end, count in ends.items()) or "held to the end"
    return Happened(not any(end.startswith("2") for end in ends), f"{senders} senders: {told}")


@attack("H3", "everybody elsewhere is answered as before")
def slow_bodies(target: Target) -> Happened:
    """Eight bodies of one address that hardly come."""
    return _dripped(target, "/v1/models/digits/infer", 8, ELSEWHERE)


@attack(
    "H3", "even the address itself is answered, within the window for slow ones", patient_s=10.0
)
def slow_bodies_of_the_same_address(target: Target) -> Happened:
    """The same from the genuine client's own address."""
    return _dripped(target, "/v1/models/digits/infer", 4, "127.0.0.1")


@attack("H3", "who has a key is answered as before", place="keys")
def slow_forms_without_a_key(target: Target) -> Happened:
    """Forms in which a key may follow, from the genuine client's own address."""
    return _dripped(target, "/v1/vision/custom/x", 8, "127.0.0.1", _FORM)


@attack(
    "H3",
    "401 before a byte of the body is read",
    place="keys",
    most_grown_bytes=32 * MB,
    quick=True,
)
def large_bodies_without_a_key(target: Target) -> Happened:
    """Sixteen bodies of 60 MB over HTTP, with no key."""

    async def one(_number: int) -> str:
        transport = httpx.AsyncHTTPTransport(local_address=ELSEWHERE)
        with suppress(httpx.HTTPError):
            async with httpx.AsyncClient(transport=transport, timeout=30) as client:
                url = f"{target.url}/v1/models/digits/infer"
                return str((await client.post(url, content=bytes(60 * MB))).status_code)
        return "401"  # answered, and hung up on while it still sent

    return _sixteen(one, "401")


@attack(
    "H4",
    "UNAUTHENTICATED before the message is read",
    place="keys",
    most_grown_bytes=32 * MB,
    quick=True,
)
def large_messages_without_a_key(target: Target) -> Happened:
    """Sixteen messages of 60 MB over gRPC, with no key."""
    return _messages(target, "UNAUTHENTICATED")


# Four are held at a time, each as a message and as its tensors.
@attack("H4", "a few at a time are read, the others wait", most_grown_bytes=8 * 65 * MB)
def large_messages_of_one_caller(target: Target) -> Happened:
    """The same where there are no keys: they are no inputs of any model, and leave nothing."""
    return _messages(target, "INVALID_ARGUMENT", "UNAVAILABLE")


def _sixteen(one: Callable[[int], Awaitable[str]], *expected: str) -> Happened:
    """Sixteen ask at the same time, and are told nothing but what is expected."""

    async def everybody() -> list[str]:
        return await asyncio.gather(*map(one, range(16)))

    codes = Counter(asyncio.run(everybody()))
    return Happened(set(codes) <= set(expected), f"{dict(codes)}")


def _same(data: bytes) -> bytes:
    return data


def _messages(target: Target, *expected: str) -> Happened:
    request = pb.ModelInferRequest(model_name="digits")
    request.inputs.add(name="image", datatype="FP32", shape=(1, 3, 416, 416))
    request.raw_input_contents.append(bytes(60 * MB))
    bodies = (bytes(60 * MB), request.SerializeToString())
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]

    async def one(number: int) -> str:
        async with grpc.aio.insecure_channel(target.grpc, options=options) as channel:
            call = channel.unary_unary(METHOD, _same, _same)
            try:
                await call(bodies[number % 2], timeout=40)
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
        return "OK"

    return _sixteen(one, *expected)


def _flooded(target: Target, own: str, first: bytes) -> Happened:
    """410 connections that stay, and come again where they were closed; who else asks?"""
    seen: Counter[str] = Counter()
    with ExitStack() as stack:
        deadline = time.monotonic() + 6.0
        while time.monotonic() < deadline:
            for _ in range(410):
                with suppress(OSError):
                    line = socket.create_connection(("127.0.0.1", target.port), 5, (own, 0))
                    stack.enter_context(line)
                    line.sendall(first)
            for asker in ("127.0.0.3", own):
                for path in ("/healthz", "/readyz"):
                    seen[f"{asker}{path} {_asked(target, asker, path)}"] += 1
            if len(stack._exit_callbacks) > 800:  # type: ignore[attr-defined]
                break
    ok = all(answer.endswith(" 200") for answer in seen)
    return Happened(ok, ", ".join(f"{count} x {answer}" for answer, count in seen.items()))


def _asked(target: Target, own: str, path: str) -> int:
    transport = httpx.HTTPTransport(local_address=own)
    with httpx.Client(transport=transport, timeout=5) as client:
        try:
            return client.get(target.url + path).status_code
        except httpx.HTTPError:
            return 0


_ANSWERED = "health is answered to everybody, to the flooding address too"


@attack("H10", _ANSWERED, quick=True)
def idle_connections(target: Target) -> Happened:
    """410 connections of one address that say nothing, again and again."""
    return _flooded(target, ELSEWHERE, b"")


@attack("H10", _ANSWERED)
def slow_heads_of_the_same_address(target: Target) -> Happened:
    """410 requests of the genuine client's own address whose head never ends."""
    return _flooded(target, "127.0.0.1", b"GET / HT")


@attack("H10", _ANSWERED)
def slow_requests(target: Target) -> Happened:
    """410 requests of one address whose body never comes."""
    head = "POST /v1/models/digits/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"
    return _flooded(target, ELSEWHERE, head.encode())
