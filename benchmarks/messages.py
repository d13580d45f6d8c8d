"""What a message between two daemons costs either of them in CPU: the root of the lab's charges.

A worker process takes tensors over two connections, one on each every ten milliseconds: as halos
come from two neighbours and go to two, with the wakeups of pairs and not those of a stream. In
turns, they go as from a host, over gRPC (on the daemons' event loop, or by threads of gRPC's own)
and past it, and as from neighbours over the data plane, both plain and under mutual TLS. What both
processes need in the same time without messages is taken off. Meanwhile programs of the lowest
priority keep every core awake: to wake a virtual machine's core that was put to sleep is the
hypervisor's work, which no Pi does.

    python -m benchmarks.messages [--json] [--messages 300] [--rounds 3]
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import grpc
import numpy as np
import uvloop

from benchmarks.report import command_line, emit
from coordinator.devices import children
from coordinator.trust.authority import Authority
from coordinator.trust.trust import Trust
from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.rpc.channels import CHANNEL_OPTIONS, HOST, Caller
from protos.rpc.serving import EXCHANGE
from protos.rpc.worker_client import ExchangeStream, WorkerClient
from protos.trust.credentials import Credentials
from protos.trust.identity import (
    certified,
    device_name,
    keep_identity,
    new_key,
    now_utc,
    signing_request,
)
from protos.wire.convert import box_message, data_type_of
from protos.wire.endpoint import Endpoint
from protos.wire.facts import DeviceId
from protos.wire.frames import encode
from worker.peers.data_stream import DataStream, connect
from worker.tasks.actions import SendToPeer, TaskKey, TensorPiece
from worker.trust.certificate import IDENTITY_FILE

# Halos of common networks, and the tile of one.
SHAPES = ((1, 64, 1, 16), (1, 64, 1, 256), (1, 256, 2, 256))
# Between messages, as between the kernels of a network: caches are cold by then.
GAP_S = 0.01
_START_S = 60.0
_RECEIVER, _SENDER = "b" * 16, "a" * 16


def seldom(times: int) -> Iterator[int]:
    """Numbers, each after a gap."""
    for number in range(times):
        time.sleep(GAP_S)
        yield number


class Transport(Protocol):
    """Sends one tensor over each of two connections, every ten milliseconds."""

    def send(self, shape: tuple[int, ...], pairs: int) -> None:
        """So many pairs; returns when they have left."""
        ...


class Exchange:
    """Exchange streams on an event loop, as between a host and a worker: direct, or over gRPC."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        running: dict[str, Any],
        caller: Caller,
        *,
        direct: bool,
    ) -> None:
        self._loop = loop
        self._running = running
        self._caller = caller
        self._direct = direct
        self._streams: list[ExchangeStream] = []

    def send(self, shape: tuple[int, ...], pairs: int) -> None:
        """On an event loop."""
        self._loop.run_until_complete(self._send(shape, pairs))

    async def _send(self, shape: tuple[int, ...], pairs: int) -> None:
        while len(self._streams) < 2:
            device = self._running["id"]
            client = WorkerClient(self._running["address"], self._caller, device)
            self._streams.append(client.exchange())
            if self._direct:
                await self._streams[-1].go_direct(device, self._caller.credentials)
        values = np.zeros(shape, np.float32)
        for _ in range(pairs):
            await asyncio.sleep(GAP_S)
            for number, stream in enumerate(self._streams):
                await stream.write([_tensor(number, values)], [values])


class GrpcThreads:
    """Exchange streams over gRPC, written by gRPC's own threads instead of an event loop. The
    worker reads as ever.
    """

    def __init__(self, running: dict[str, Any], caller: Caller) -> None:
        self._queues: list[SimpleQueue[bytes]] = [SimpleQueue() for _ in range(2)]
        # A channel ends with whoever knows it.
        self._open: list[Any] = []
        for queue in self._queues:
            channel: Any = grpc.insecure_channel(running["address"], options=CHANNEL_OPTIONS)
            call = channel.stream_stream(EXCHANGE)(iter(queue.get, b""), metadata=caller.metadata)
            self._open += [channel, call]

    def send(self, shape: tuple[int, ...], pairs: int) -> None:
        """From this thread."""
        values = np.zeros(shape, np.float32)
        for _ in seldom(pairs):
            for number, queue in enumerate(self._queues):
                queue.put(encode([_tensor(number, values)], [values]))


class Data:
    """The data plane, plain or under TLS."""

    def __init__(self, running: dict[str, Any], caller: Caller) -> None:
        address = f"127.0.0.1:{running['data_port']}"
        self._links = [
            DataStream(connect(address, running["id"], caller), Endpoint()) for _ in range(2)
        ]

    def send(self, shape: tuple[int, ...], pairs: int) -> None:
        """In this thread, as who computes does."""
        values = np.zeros(shape, np.float32)
        for _ in seldom(pairs):
            for number, link in enumerate(self._links):
                key = TaskKey(_request(), 1, number, 0)
                piece = TensorPiece(key, "halo", Box.whole(shape), values)
                assert link.send(SendToPeer("", "", (piece,), key))


def main() -> int:
    """Prints the result."""
    parser = command_line(__doc__)
    parser.add_argument("--messages", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="imbrex-messages-") as name, ExitStack() as stack:
        folder = Path(name)
        plain, plain_pid = stack.enter_context(worker(folder / "plain"))
        caller = _members(folder)
        tls, tls_pid = stack.enter_context(worker(folder / "tls"))
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        host = Trust.load(folder)
        loop.run_until_complete(_admit(tls["address"], host))
        transports: dict[str, tuple[Transport, int]] = {
            "grpc": (Exchange(loop, plain, Caller(HOST), direct=False), plain_pid),
            "grpc_threads": (GrpcThreads(plain, Caller(HOST)), plain_pid),
            "host": (Exchange(loop, plain, Caller(HOST), direct=True), plain_pid),
            "host_tls": (Exchange(loop, tls, host.caller, direct=True), tls_pid),
            "data": (Data(plain, Caller(_SENDER)), plain_pid),
            "data_tls": (Data(tls, caller), tls_pid),
        }
        with awake():
            found = measure(transports, given.messages // 2, given.rounds)
    rows = [
        f"{name:12} {row['bytes']:>7} bytes: {row['sender_ms']:.3f} ms to send, "
        f"{row['receiver_ms']:.3f} ms to receive, {row['of_grpc']:.2f} of gRPC's"
        for name, sizes in found["transports"].items()
        for row in sizes
    ]
    emit(found, given, "\n".join(rows))
    return 0


def measure(
    transports: dict[str, tuple[Transport, int]], pairs: int, rounds: int
) -> dict[str, Any]:
    """CPU milliseconds of either side per message, by transport and size: medians of rounds that
    take turns.
    """
    spent: dict[tuple[str, tuple[int, ...]], list[tuple[float, float]]] = {}
    for transport, _ in transports.values():
        transport.send(SHAPES[0], pairs)  # connects, and warms both sides up
    for _ in range(rounds):
        for shape in SHAPES:
            for name, (transport, pid) in transports.items():
                # What the process spends in so much time without messages is not theirs.
                idle = _spent(pid, lambda: time.sleep(pairs * GAP_S))
                busy = _spent(pid, partial(transport.send, shape, pairs))
                sides = tuple((b - i) / (2 * pairs) * 1e3 for b, i in zip(busy, idle, strict=True))
                spent.setdefault((name, shape), []).append((sides[0], sides[1]))
    found: dict[str, list[dict[str, float]]] = {}
    for name in transports:
        for shape in SHAPES:
            sender, receiver = map(statistics.median, zip(*spent[name, shape], strict=True))
            grpc = map(statistics.median, zip(*spent["grpc", shape], strict=True))
            row = {
                "bytes": 4 * int(np.prod(shape)),
                "sender_ms": round(sender, 4),
                "receiver_ms": round(receiver, 4),
                "of_grpc": round((sender + receiver) / sum(grpc), 3),
            }
            found.setdefault(name, []).append(row)
    return {"messages": 2 * pairs, "rounds": rounds, "gap_s": GAP_S, "transports": found}


def side_ms(sizes: Sequence[Mapping[str, float]]) -> list[float]:
    """Milliseconds of a side, by size."""
    return [(row["sender_ms"] + row["receiver_ms"]) / 2 for row in sizes]


def line(sizes: Sequence[Mapping[str, float]], sides_ms: Sequence[float]) -> tuple[float, float]:
    """Milliseconds per message and nanoseconds per byte that a side is charged, if messages of
    these sizes take so long: of all lines the one with the least relative errors.
    """
    measured_ms = np.array(sides_ms)
    size_bytes = np.array([row["bytes"] for row in sizes])
    relative = np.stack([1 / measured_ms, size_bytes / measured_ms], axis=1)
    (message_ms, byte_ms), *_ = np.linalg.lstsq(relative, np.ones(len(sizes)))
    return float(message_ms), float(byte_ms) * 1e6


def _spent(worker: int, do: Callable[[], None]) -> tuple[float, float]:
    """CPU seconds of this process and of the worker."""
    before = cpu_s(os.getpid()), cpu_s(worker)
    do()
    time.sleep(0.05)  # what was sent last is taken
    after = cpu_s(os.getpid()), cpu_s(worker)
    return after[0] - before[0], after[1] - before[1]


@contextmanager
def worker(state: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """A worker process: what its ready file says, and its id."""
    arguments = ["worker", "--port", "0", "--no-mdns", "--state-dir", str(state)]
    child = children.start("worker", arguments, state, state / "ready.json")
    try:
        up = "the worker has not started"
        children.wait_until(lambda: child.ready() is not None, up, [child], _START_S)
        yield child.ready() or {}, child.process.pid
    finally:
        children.stop([child])


def _members(folder: Path) -> Caller:
    """Makes a cluster of a host, a receiver and a sender; the sender's way to call."""
    authority = Authority.make(folder, now_utc())

    def give(device: str, path: Path) -> Credentials:
        key = new_key()
        signed = authority.sign(signing_request(key, device), DeviceId(device), now_utc())
        own = certified(key, signed, authority.certificate_pem, device_name(device))
        path.parent.mkdir(parents=True, exist_ok=True)
        keep_identity(path, own)
        return Credentials(path, own)

    give(_RECEIVER, folder / "tls" / IDENTITY_FILE)
    (folder / "tls" / "id").write_text(f"{_RECEIVER}\n")
    return Caller(_SENDER, credentials=give(_SENDER, folder / "sender.pem"))


async def _admit(address: str, host: Trust) -> None:
    """The host says who is a member."""
    async with WorkerClient(address, host.caller, _RECEIVER) as client:
        await client.hello("benchmark", members=[_RECEIVER, _SENDER])


def _tensor(task: int, values: np.ndarray) -> pb.Item:
    header = pb.Tensor(
        request=_request(),
        task=task,
        tensor="halo",
        box=box_message(Box.whole(values.shape)),
        data_type=data_type_of(values.dtype),
    )
    return pb.Item(tensor=header)


def _request() -> str:
    return f"r{time.monotonic_ns()}"


@contextmanager
def awake() -> Iterator[None]:
    """No core sleeps."""
    spin = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def cpu_s(pid: int) -> float:
    """Seconds of CPU of a process, to the nanosecond: clock ticks are coarser than messages."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in tasks) * 1e-9


if __name__ == "__main__":
    raise SystemExit(main())
