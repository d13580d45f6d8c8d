"""What the lab measures: convolutions, TCP streams, messages."""

from __future__ import annotations

import asyncio
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache

from benchmarks.lab.namespace import inside
from coordinator.devices.pings import Pinger
from coordinator.devices.programs import program_message
from coordinator.planning.single_device import unsplit_works
from imbrex.demo.emulation.rate import GFLOP, SIDE
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import Preset
from models.catalogue.vgg import vgg16
from models.cut.cutter import cut
from models.cut.program import BlobSource, Program
from models.cut.units import divide
from models.graph.graph import Graph
from models.onnx_file.importer import load_graph
from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.rpc.channels import Caller
from protos.rpc.worker_client import WorkerClient

_DEVICE_RUNS = 5
_PINGS, _LARGE_PINGS = 60, 3
_PAYLOAD_BYTES = 1 << 20
_TIMEOUT_S = 30.0
# A stream is timed after its start: slow start overruns the queue, and what was dropped is sent
# again a fifth of a second later.
_STREAM_S = 1.0
_WARM_S = 1.0
_CHUNK = 64 << 10
# As large as the halos of most layers, and as seldom.
_MESSAGES, _MESSAGE_BYTES, _GAP_S = 15, 64 << 10, 0.02


async def device_gflops(addresses: Sequence[str], caller: Caller) -> list[float]:
    """The rate of every device while all of them compute, by the median time."""

    async def one(address: str) -> float:
        program, inputs = _convolutions()
        request = pb.MeasureRequest(
            program=program_message(program), inputs=inputs, repeats=_DEVICE_RUNS
        )
        async with WorkerClient(address, caller) as client:
            reply = await client.measure(request)
        return GFLOP / statistics.median(reply.seconds)

    return list(await asyncio.gather(*map(one, addresses)))


async def message_seconds(address: str, caller: Caller) -> tuple[float, float]:
    """(seconds of an empty message, seconds of each byte), both of one side: a round trip is
    handled four times.
    """
    async with WorkerClient(address, caller) as client:
        stream = client.exchange()
        # As a coordinator's messages and pings go.
        await stream.go_direct((await client.hello("lab")).facts.id, caller.credentials)
        pinger = Pinger(stream, address)
        reading = asyncio.create_task(pinger.read())
        try:
            empty = [(await pinger.ping(_TIMEOUT_S)).seconds for _ in range(_PINGS)]
            full = [
                (await pinger.ping(_TIMEOUT_S, _PAYLOAD_BYTES, _PAYLOAD_BYTES)).seconds
                for _ in range(_LARGE_PINGS)
            ]
        finally:
            reading.cancel()
    # The median: other load adds to the mean, and what timers are early takes from the least.
    empty_s = statistics.median(empty)
    return empty_s / 4, max(0.0, min(full) - empty_s) / (4 * _PAYLOAD_BYTES)


def stream_mbps(source: str, target: str, address: str) -> float:
    """What a TCP stream from namespace to namespace carries; `address` is the target's."""
    with _connection(source, target, address) as (sender, receiver):
        sending = threading.Thread(target=_send, args=(sender,))
        sending.start()
        try:
            _received(receiver, _WARM_S)
            size, seconds = _received(receiver, _STREAM_S)
        finally:
            receiver.close()
            sending.join()
    return size * 8e-6 / seconds


def message_mbps(source: str, target: str, address: str) -> float:
    """The rate of one message on an idle link, as of a halo (the median)."""
    with _connection(source, target, address) as (here, there):
        seconds = []
        for _ in range(_MESSAGES):
            time.sleep(_GAP_S)
            before = time.monotonic()
            here.sendall(bytes(_MESSAGE_BYTES))
            left = _MESSAGE_BYTES
            while left:
                left -= len(there.recv(left))
            seconds.append(time.monotonic() - before)
    return _MESSAGE_BYTES * 8e-6 / statistics.median(seconds)


def round_trip_s(source: str, target: str, address: str) -> float:
    """What one byte takes there and back over TCP, without gRPC."""
    with _connection(source, target, address) as (here, there):
        seconds = []
        for _ in range(_PINGS):
            before = time.monotonic()
            here.sendall(b"x")
            there.sendall(there.recv(1))
            here.recv(1)
            seconds.append(time.monotonic() - before)
    return statistics.quantiles(seconds, n=4)[0]


@contextmanager
def _connection(
    source: str, target: str, address: str
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection from namespace to namespace."""
    with inside(target), socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        with inside(source), closing(socket.create_connection((address, port))) as here:
            there, _ = server.accept()
            with closing(there):
                yield here, there


def preset_gflops(preset: Preset) -> float:
    """The rate that a preset says of what `device_gflops` measures."""
    (device,) = cluster_of(preset, 1).devices
    return GFLOP / device.costs.block_s(unsplit_works(divide(_vgg())))


@cache
def _vgg() -> Graph:
    model = vgg16(SIDE, classifier=False).complete()
    return load_graph(model, model.graph.name)


@cache
def _convolutions() -> tuple[Program, list[pb.TensorSpec]]:
    """VGG-16's convolutions as a program whose weights each device makes up."""
    graph = _vgg()
    everything = {name: Box.whole(graph.shape(name)) for name in graph.results}
    made = cut(graph, graph.nodes, everything, BlobSource(), static=True).program
    made_up = tuple(type(ref)(ref.name, "", ref.data_type, ref.dims) for ref in made.weights)
    inputs = [
        pb.TensorSpec(tensor=name, data_type=graph.tensors[name].data_type, dims=graph.shape(name))
        for name in graph.inputs
    ]
    return Program(made.graph, made_up), inputs


def _send(sender: socket.socket) -> None:
    chunk = bytes(_CHUNK)
    try:
        while True:
            sender.sendall(chunk)
    except OSError:
        return  # the receiver has seen enough


def _received(receiver: socket.socket, for_s: float) -> tuple[int, float]:
    """Bytes that came for so long, and how long it was."""
    buffer, size, start = bytearray(_CHUNK), 0, time.monotonic()
    while (seconds := time.monotonic() - start) < for_s:
        size += receiver.recv_into(buffer)
    return size, seconds
