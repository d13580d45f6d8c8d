"""What a message between two daemons costs either of them in CPU: the root of the lab's charges.

A worker process takes tensors from a client on the daemons' event loop, over two connections, one
on each every ten milliseconds: as halos come from two neighbours and go to two, with the wakeups of
pairs and not those of a stream. What both processes need in the same time without messages is taken
off. Meanwhile programs of the lowest priority keep every core awake: to
wake a virtual machine's core that was put to sleep is the hypervisor's work, which no Pi does.

    python -m benchmarks.messages [--json] [--messages 300]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.report import command_line, emit
from coordinator.cluster import children
from models.boxes import Box
from protos import imbrex_pb2 as pb
from protos.channels import HOST, Caller
from protos.client import ExchangeStream, WorkerClient
from protos.convert import box_message, data_type_of

# Halos of common networks, and the tile of one.
SHAPES = ((1, 64, 1, 16), (1, 64, 1, 256), (1, 256, 2, 256))
GAP_S = 0.01
_START_S = 60.0


def main() -> int:
    """Prints the result."""
    parser = command_line(__doc__)
    parser.add_argument("--messages", type=int, default=300)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="imbrex-messages-") as name:
        state = Path(name)
        arguments_of_worker = ["worker", "--port", "0", "--no-mdns", "--state-dir", name]
        child = children.start("worker", arguments_of_worker, state, state / "ready.json")
        try:
            up = "the worker has not started"
            children.wait_until(lambda: child.ready() is not None, up, [child], _START_S)
            ready = child.ready() or {}
            with _awake():
                found = uvloop.run(measure(ready["address"], ready["pid"], arguments.messages))
        finally:
            children.stop([child])
    lines = (
        f"{each['bytes']:>9} bytes: {each['sender_ms']:.3f} ms to send, "
        f"{each['receiver_ms']:.3f} ms to receive"
        for each in found["sizes"]
    )
    emit(found, arguments, "\n".join(lines))
    return 0


async def measure(address: str, worker: int, messages: int) -> dict[str, Any]:
    """CPU milliseconds of either side per message, by size."""
    async with (
        WorkerClient(address, Caller(HOST)) as one,
        WorkerClient(address, Caller(HOST)) as other,
    ):
        streams = (one.exchange(), other.exchange())
        await _send(streams, SHAPES[0], messages)  # connects, and warms both sides up
        sizes = []
        for shape in SHAPES:
            idle = await _spent(worker, (), shape, messages)
            busy = await _spent(worker, streams, shape, messages)
            sender, receiver = (
                (after - before) / messages * 1e3 for after, before in zip(busy, idle, strict=True)
            )
            sizes.append(
                {
                    "bytes": 4 * int(np.prod(shape)),
                    "sender_ms": round(sender, 4),
                    "receiver_ms": round(receiver, 4),
                }
            )
        for stream in streams:
            stream.cancel()
    return {"messages": messages, "gap_s": GAP_S, "sizes": sizes}


async def _spent(
    worker: int, streams: Sequence[ExchangeStream], shape: tuple[int, ...], messages: int
) -> tuple[float, float]:
    """CPU seconds of this process and of the worker."""
    before = cpu_s(os.getpid()), cpu_s(worker)
    await _send(streams, shape, messages)
    after = cpu_s(os.getpid()), cpu_s(worker)
    return after[0] - before[0], after[1] - before[1]


async def _send(streams: Sequence[ExchangeStream], shape: tuple[int, ...], messages: int) -> None:
    """So many messages, one over each stream at a time."""
    values = np.zeros(shape, np.float32)

    async def send(stream: ExchangeStream, name: str) -> None:
        header = pb.Tensor(
            request=name,
            tensor="halo",
            box=box_message(Box.whole(shape).spans),
            data_type=data_type_of(values.dtype),
        )
        await stream.write([pb.Item(tensor=header)], [values])

    for number in range(messages // 2):
        await asyncio.sleep(GAP_S)
        await asyncio.gather(
            *(send(each, f"{shape}-{number}-{k}") for k, each in enumerate(streams))
        )


@contextmanager
def _awake() -> Iterator[None]:
    """No core sleeps."""
    spin = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def cpu_s(pid: int) -> float:
    """Seconds of CPU of a process, to the nanosecond: clock ticks are coarser than messages."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) * 1e-9


if __name__ == "__main__":
    raise SystemExit(main())
