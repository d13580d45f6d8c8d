"""The baseline of all comparisons: the whole model on one device, by its fastest engines."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import structlog

from coordinator.answers import Baseline
from coordinator.costs.cluster import Device
from coordinator.devices.connection import Connection
from coordinator.devices.programs import program_message
from coordinator.library.loaded import Loaded
from coordinator.planning.single_device import best_alone, everything
from models.cut.cutter import CutTile, cut
from models.cut.program import BlobSource
from models.vision.pixels import without_pixels
from protos import imbrex_pb2 as pb
from protos.errors import ImbrexError
from protos.wire.facts import ONNXRUNTIME

# Enough runs to be unaffected by one burst of other load.
REPEATS = 7
AT_MOST_S = 30.0
# Of the network and of its halves, by each engine, where there are two halves.
HALF_REPEATS = 3
# The longest that a device takes to load a network.
_START_S = 60.0


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProgramTimes:
    """Median seconds of a program by each engine that takes it, and the threads of the fastest."""

    seconds: Mapping[str, float]
    threads: int

    @classmethod
    def of(cls, reply: pb.MeasureReply) -> Self:
        """What a worker has measured."""
        runs = {run.engine: run.seconds for run in reply.engines}
        if not runs:  # a worker of a version that did not tell engines apart
            runs = {ONNXRUNTIME: reply.seconds}
        medians = {
            name: statistics.median_high(seconds) for name, seconds in runs.items() if seconds
        }
        return cls(medians, reply.threads)

    @property
    def engine(self) -> str:
        """The fastest one."""
        return min(self.seconds, key=lambda name: self.seconds[name])


async def baseline_of(devices: Sequence[tuple[Device, Connection]], loaded: Loaded) -> Baseline:
    """The fastest of these devices; of devices of one kind, only the last is measured.

    Raises:
        ImbrexError: none of them can run it.
    """
    alike = {connection.facts.fingerprint: (device, connection) for device, connection in devices}
    results, failures = [], []
    for device, connection in alike.values():
        try:
            results.append(await alone(device, connection, loaded))
        except ImbrexError as error:  # it is too small for it, or has gone
            failures.append(error)
    if not results:
        raise failures[0]
    return min(results, key=lambda baseline: baseline.latency_s)


async def alone(device: Device, connection: Connection, loaded: Loaded) -> Baseline:
    """One device, with the number of threads that suits it best: with the unsplit model, or with
    its two halves where these are predicted to be faster.
    """
    facts = connection.facts
    threads = {1, facts.threads, facts.cores} if facts.pace >= 1 else {1}
    halves = await asyncio.to_thread(halves_on, device, loaded)
    repeats = HALF_REPEATS if halves else REPEATS
    measured = partial(_measured, connection, loaded, threads, repeats)
    return _baseline(connection, await measured_alone(loaded, halves, measured))


async def whole_on(
    device: Connection, loaded: Loaded, threads: Collection[int], repeats: int
) -> Baseline:
    """One device with the unsplit model, with the fastest of these numbers of threads.

    Raises:
        ImbrexError: it cannot run the network, or has gone.
    """
    measured = partial(_measured, device, loaded, threads, repeats)
    return _baseline(device, await measured_alone(loaded, (), measured))


async def measured_alone(
    loaded: Loaded,
    halves: Sequence[CutTile],
    measured: Callable[[CutTile, BlobSource], Awaitable[ProgramTimes]],
) -> ProgramTimes:
    """The unsplit model and, under the names of the engines that compute them, its `halves`; only
    the model if these cannot be measured.

    Raises:
        ImbrexError: the device cannot run the unsplit model, or has gone.
    """
    whole = await measured(*await asyncio.to_thread(loaded.whole))
    try:
        found = [await measured(half, loaded.blobs()) for half in halves]
    except ImbrexError as error:
        log.warning("not measured in two programs", model=loaded.served.name, cause=error.cause)
        return whole
    if not found:
        return whole
    engines = "+".join(dict.fromkeys(half.engine for half in found))
    halves_s = sum(half.seconds[half.engine] for half in found)
    best_s = min(halves_s, whole.seconds.get(engines, halves_s))
    return replace(whole, seconds={**whole.seconds, engines: best_s})


def halves_on(device: Device, loaded: Loaded) -> Sequence[CutTile]:
    """The two programs in which a device is predicted to compute everything faster; none if there
    are no such.
    """
    network, blobs = loaded.served.network, loaded.blobs()
    graph, cut_at = without_pixels(network.graph), best_alone(network, [device]).cut
    parts = ((0, cut_at), (cut_at, len(network.units))) if cut_at else ()
    blocks = [everything(network, device.id, start, stop) for start, stop in parts]
    return [
        cut(graph, network.nodes(block.start, block.stop), block.tiles[0].boxes, blobs)
        for block in blocks
    ]


async def _measured(
    device: Connection,
    loaded: Loaded,
    threads: Collection[int],
    repeats: int,
    tile: CutTile,
    blobs: BlobSource,
) -> ProgramTimes:
    await device.ensure([tile.program], blobs)
    request = measure_request(
        tile, loaded, repeats=repeats, at_most_s=AT_MOST_S, threads=sorted(threads)
    )
    return ProgramTimes.of(await device.measure(request, _START_S + 2 * AT_MOST_S * len(threads)))


def _baseline(device: Connection, measured: ProgramTimes) -> Baseline:
    engine, seconds = measured.engine, measured.seconds
    plain_s = seconds.get(ONNXRUNTIME)
    return Baseline(device.facts.name, seconds[engine], measured.threads, engine, plain_s)


def measure_request(tile: CutTile, loaded: Loaded, **options: Any) -> pb.MeasureRequest:
    """The message that has a program measured."""
    tensors = loaded.served.network.graph.tensors
    inputs = [
        pb.TensorSpec(tensor=name, data_type=tensors[name].data_type, dims=box.shape)
        for name, box in tile.inputs.items()
    ]
    return pb.MeasureRequest(program=program_message(tile.program), inputs=inputs, **options)
