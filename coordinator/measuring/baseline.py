"""The baseline of all comparisons: the unsplit model on one device, by its fastest engine."""

import asyncio
import statistics
from collections.abc import Collection, Sequence

from coordinator.answers import Baseline
from coordinator.devices.connection import Connection
from coordinator.devices.programs import program_message
from coordinator.library.loaded import Loaded
from protos import imbrex_pb2 as pb
from protos.errors import ImbrexError
from protos.wire.facts import ONNXRUNTIME

# Enough runs to be unaffected by one burst of other load.
REPEATS = 7
AT_MOST_S = 30.0
# The longest that a device takes to load a network.
_START_S = 60.0


async def best_alone(devices: Sequence[Connection], loaded: Loaded) -> Baseline:
    """The fastest of these devices; of devices of one kind, only the last is measured.

    Raises:
        ImbrexError: none of them can run it.
    """
    alike = {each.facts.fingerprint: each for each in devices}
    results, failures = [], []
    for device in alike.values():
        try:
            results.append(await alone(device, loaded))
        except ImbrexError as error:  # it is too small for it, or has gone
            failures.append(error)
    if not results:
        raise failures[0]
    return min(results, key=lambda baseline: baseline.latency_s)


async def alone(device: Connection, loaded: Loaded) -> Baseline:
    """One device, with the number of threads that suits it best."""
    facts = device.facts
    threads = {1, facts.threads, facts.cores} if facts.pace >= 1 else {1}
    return await whole_on(device, loaded, threads, REPEATS)


async def whole_on(
    device: Connection, loaded: Loaded, threads: Collection[int], repeats: int
) -> Baseline:
    """One device, with the fastest of these numbers of threads.

    Raises:
        ImbrexError: it cannot run the network, or has gone.
    """
    whole, blobs = await asyncio.to_thread(loaded.whole)
    tensors = loaded.served.network.graph.tensors
    await device.ensure([whole.program], blobs)
    reply = await device.measure(
        pb.MeasureRequest(
            program=program_message(whole.program),
            inputs=[
                pb.TensorSpec(tensor=name, data_type=tensors[name].data_type, dims=box.shape)
                for name, box in whole.inputs.items()
            ],
            repeats=repeats,
            at_most_s=AT_MOST_S,
            threads=sorted(threads),
        ),
        _START_S + 2 * AT_MOST_S * len(threads),
    )
    seconds = seconds_of(reply)
    engine = min(seconds, key=lambda name: seconds[name])
    plain_s = seconds.get(ONNXRUNTIME)
    return Baseline(device.facts.name, seconds[engine], reply.threads, engine, plain_s)


def seconds_of(reply: pb.MeasureReply) -> dict[str, float]:
    """Median seconds by engine."""
    runs = {run.engine: run.seconds for run in reply.engines}
    if not runs:  # a worker of a version that did not tell engines apart
        runs = {ONNXRUNTIME: reply.seconds}
    return {engine: statistics.median_high(seconds) for engine, seconds in runs.items() if seconds}
