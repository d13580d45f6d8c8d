"""The baseline of all comparisons: the whole model on one device, by its fastest engines."""

import asyncio
import statistics
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

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
# Of each half of a network, by each engine; the median counts.
HALF_REPEATS = 3
# The longest that a device takes to load a network.
_START_S = 60.0


async def baseline_of(devices: Sequence[tuple[Device, Connection]], loaded: Loaded) -> Baseline:
    """The fastest of these devices; of devices of one kind, only the last is measured.

    Raises:
        ImbrexError: none of them can run it.
    """
    alike = {connection.facts.fingerprint: (each, connection) for each, connection in devices}
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
    whole = await whole_on(connection, loaded, threads, REPEATS)
    halves, blobs = await asyncio.to_thread(halves_on, device, loaded)
    found = [
        await _measured(connection, half, blobs, loaded, threads, HALF_REPEATS) for half in halves
    ]
    latency_s = sum(half.latency_s for half in found)
    if not found or latency_s > whole.latency_s:
        return whole
    engine = "+".join(dict.fromkeys(half.engine for half in found))
    return replace(whole, latency_s=latency_s, threads=found[0].threads, engine=engine)


async def whole_on(
    device: Connection, loaded: Loaded, threads: Collection[int], repeats: int
) -> Baseline:
    """One device with the unsplit model, with the fastest of these numbers of threads.

    Raises:
        ImbrexError: it cannot run the network, or has gone.
    """
    whole, blobs = await asyncio.to_thread(loaded.whole)
    return await _measured(device, whole, blobs, loaded, threads, repeats)


def halves_on(device: Device, loaded: Loaded) -> tuple[Sequence[CutTile], BlobSource]:
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
    ], blobs


async def _measured(
    device: Connection,
    tile: CutTile,
    blobs: BlobSource,
    loaded: Loaded,
    threads: Collection[int],
    repeats: int,
) -> Baseline:
    await device.ensure([tile.program], blobs)
    request = measure_request(
        tile, loaded, repeats=repeats, at_most_s=AT_MOST_S, threads=sorted(threads)
    )
    reply = await device.measure(request, _START_S + 2 * AT_MOST_S * len(threads))
    seconds = seconds_of(reply)
    engine = min(seconds, key=lambda name: seconds[name])
    plain_s = seconds.get(ONNXRUNTIME)
    return Baseline(device.facts.name, seconds[engine], reply.threads, engine, plain_s)


def measure_request(tile: CutTile, loaded: Loaded, **options: Any) -> pb.MeasureRequest:
    """The message that has a program measured."""
    tensors = loaded.served.network.graph.tensors
    inputs = [
        pb.TensorSpec(tensor=name, data_type=tensors[name].data_type, dims=box.shape)
        for name, box in tile.inputs.items()
    ]
    return pb.MeasureRequest(program=program_message(tile.program), inputs=inputs, **options)


def seconds_of(reply: pb.MeasureReply) -> dict[str, float]:
    """Median seconds by engine."""
    runs = {run.engine: run.seconds for run in reply.engines}
    if not runs:  # a worker of a version that did not tell engines apart
        runs = {ONNXRUNTIME: reply.seconds}
    return {engine: statistics.median_high(seconds) for engine, seconds in runs.items() if seconds}
