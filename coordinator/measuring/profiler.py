"""Profiles: devices are measured one at a time, when idle; alike devices share one profile."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import structlog

from coordinator.costs.regression import DeviceProfile
from coordinator.costs.sample_choice import Sampling
from coordinator.costs.samples import Sample
from coordinator.devices.announcements import Announcements
from coordinator.devices.connection import Connection
from coordinator.devices.profiles import MOST_KINDS, Profiles
from coordinator.devices.programs import program_message
from coordinator.measuring.baseline import ProgramTimes
from coordinator.measuring.queues import ProfileQueue
from coordinator.requests.admission import Admission
from protos import imbrex_pb2 as pb
from protos.errors import ImbrexError, LostWorker
from protos.wire.facts import DeviceId

# Time for one sample: the median of three runs, or of as many as fit.
REPEATS = 3
SAMPLE_AT_MOST_S = 1.0
# Preparing a sample's session takes far less, even on a Pi; beyond this the worker is stuck.
SAMPLE_TIMEOUT_S = 60.0

_FAULT = ImbrexError(cause="measuring it failed inside imbrex", cure="See the coordinator's log.")
# The error if the device has begun to compute with another engine meanwhile.
_SWITCHED = ImbrexError(
    cause="it changed its engine while it was measured", cure="It is measured again by itself."
)
# The error if fewer samples came back than a useful profile needs.
_NOTHING = ImbrexError(
    cause="too few samples came back in time",
    cure="Measure it again (`imbrex profile`) when nothing else runs there.",
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Profiled:
    """There is a new profile."""


class Profiler:
    """Measures the devices that `want` names unless a profile describes them, here or at another
    coordinator that shares the cluster's state.

    Each sample waits until no request is being computed. Until its profile is there, a device is
    planned with its prior: measuring never delays readiness.
    """

    def __init__(
        self,
        profiles: Profiles,
        announcements: Announcements,
        admission: Admission,
        budget_s: float = 60.0,
    ) -> None:
        self._profiles = profiles
        self._announcements = announcements
        self._admission = admission
        self._budget_s = budget_s
        self._queue = ProfileQueue()
        self._connections: dict[DeviceId, Connection] = {}
        # Devices that are to be measured whoever has measured their kind.
        self._again: set[DeviceId] = set()
        self._work: asyncio.Task[None] | None = None
        self.measuring: tuple[DeviceId, float] | None = None
        self.failures: dict[DeviceId, ImbrexError] = {}

    def want(self, connection: Connection, *, again: bool = False) -> None:
        """Queues a device for measuring unless its kind has a profile. With `again` it is measured
        in any case; the old profile is used until the new one is there. Devices with limits are not
        measured, since samples are not whole networks: what they say of themselves is corrected by
        the networks that they compute.
        """
        facts = connection.facts
        if facts.limits is not None:
            return
        if not again and self._profiles.of(facts) is not None:
            return
        self.failures.pop(facts.id, None)
        if again:
            self._again.add(facts.id)
        self._connections[facts.id] = connection
        self._begin(self._queue.want(facts.id, facts.fingerprint))

    def progress(self, device: DeviceId) -> float | None:
        """Progress of measuring a device in [0, 1], 0 while it waits; None if it is not queued."""
        if self.measuring is not None and self.measuring[0] == device:
            return self.measuring[1]
        return 0.0 if self._queue.wants(device) else None

    async def stop(self) -> None:
        """Stops measuring; finished profiles are on disk."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    def _begin(self, device: DeviceId | None) -> None:
        if device is not None:
            self._work = asyncio.create_task(self._run(device))

    async def _run(self, device: DeviceId) -> None:
        try:
            has_profile = await self._profiled(self._connections[device])
        finally:
            self.measuring = None
        self._begin(self._queue.profiled(found=has_profile))
        wanted = filter(self._queue.wants, self._connections)
        self._connections = {device: self._connections[device] for device in wanted}

    async def _profiled(self, connection: Connection) -> bool:
        """Measures a device; whether there is a new profile."""
        device, kind = connection.facts.id, connection.facts.fingerprint
        try:
            theirs = None if device in self._again else self._profiles.of_others(kind)
            profile = theirs or await self._measure(connection)
            known = self._profiles.of(connection.facts)
            profile = replace(profile, endpoint=known.endpoint if known else None)
            await self._profiles.put(kind, profile, share=theirs is None)
        except LostWorker as error:
            self._failed(device, error)
            log.info("profiling stopped: the device left", device=device, cause=error.cause)
        except ImbrexError as error:
            self._failed(device, error)
            log.warning("profiling failed", device=device, cause=error.cause, cure=error.cure)
        except Exception:
            self._failed(device, _FAULT)
            log.exception("profiling failed inside imbrex", device=device)
        else:
            self._again.discard(device)
            samples = sum(fit.samples for fit in profile.fits.values())
            mape = round(profile.block_mape, 3)
            log.info("profile", device=device, block_mape=mape, samples=samples)
            self._announcements.announce(Profiled())
            return True
        return False

    async def _measure(self, connection: Connection) -> DeviceProfile:
        # Making samples and fitting take tens of milliseconds: too long for the event loop.
        sampling, kind = Sampling(self._budget_s), connection.facts.fingerprint
        while (sample := await asyncio.to_thread(sampling.next)) is not None:
            await self._admission.idle()
            self.measuring = (connection.facts.id, sampling.progress)
            began_s = time.monotonic()
            seconds = await _seconds(connection, sample)
            spent_s = time.monotonic() - began_s
            await asyncio.to_thread(sampling.record, sample, seconds, spent_s)
        described = {key: str(value) for key, value in asdict(connection.facts).items()}
        profile = await asyncio.to_thread(sampling.profile, described)
        if not profile.fits:
            raise _NOTHING
        if connection.facts.fingerprint != kind:
            raise _SWITCHED
        return profile

    def _failed(self, device: DeviceId, error: ImbrexError) -> None:
        if len(self.failures) >= MOST_KINDS and device not in self.failures:
            del self.failures[next(iter(self.failures))]
        self.failures[device] = error


async def _seconds(connection: Connection, sample: Sample) -> Mapping[str, float]:
    """Median seconds of one sample by each engine that could run it.

    Raises:
        LostWorker: the connection has ended.
    """
    inputs = [
        pb.TensorSpec(tensor=entry.tensor, data_type=entry.data_type, dims=entry.dims)
        for entry in sample.what.inputs
    ]
    request = pb.MeasureRequest(
        program=program_message(sample.what.program),
        inputs=inputs,
        repeats=REPEATS,
        at_most_s=SAMPLE_AT_MOST_S,
    )
    try:
        reply = await connection.measure(request, SAMPLE_TIMEOUT_S)
    except LostWorker:
        raise
    except ImbrexError:
        return {}
    return ProgramTimes.of(reply).seconds
