"""Profiles: devices are measured one at a time, when idle; alike devices share one profile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import structlog

from coordinator.cluster.connection import Connection
from coordinator.cluster.facts import Facts
from coordinator.cluster.programs import program_message
from coordinator.costs.profile_json import parse_profile, save_profile
from coordinator.costs.regression import Profile
from coordinator.costs.samples import Sample
from coordinator.costs.sampling import Sampling
from protos import imbrex_pb2 as pb
from protos.errors import ImbrexError, LostWorker

# A single sample: the median of three runs, or of what fits.
REPEATS = 3
SAMPLE_AT_MOST_S = 1.0

log = structlog.get_logger(__name__)


class Profiler:
    """Measures devices that `want` names and that no profile on disk describes; `idle` returns
    when no request is being computed.
    """

    def __init__(
        self,
        folder: Path,
        done: Callable[[], None],
        idle: Callable[[], Awaitable[None]],
        budget_s: float = 60.0,
    ) -> None:
        self._folder = folder
        self._done = done
        self._idle = idle
        self._budget_s = budget_s
        self._profiles: dict[str, Profile | None] = {}
        self._queue: dict[str, Connection] = {}
        self._work: asyncio.Task[None] | None = None
        self.measuring: tuple[str, float] | None = None

    def profile(self, facts: Facts) -> Profile | None:
        """The profile of devices like this one, if it has been measured here or before."""
        key = facts.fingerprint
        if key not in self._profiles:
            self._profiles[key] = self._load(key)
        return self._profiles[key]

    def want(self, connection: Connection) -> None:
        """Queues a device for measuring, unless its kind is known."""
        if self.profile(connection.facts) is not None:
            return
        self._queue[connection.facts.fingerprint] = connection
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stops measuring."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _run(self) -> None:
        while self._queue:
            fingerprint, connection = next(iter(self._queue.items()))
            try:
                profile = await self._measure(connection)
            except LostWorker:
                log.info("profiling stopped: the device left", device=connection.facts.id)
            except ImbrexError as error:
                log.warning("no profile", device=connection.facts.id, error=str(error))
            else:
                self._profiles[fingerprint] = profile
                self._save(fingerprint, profile)
                log.info(
                    "profile",
                    device=connection.facts.id,
                    block_mape=round(profile.block_mape, 3),
                    samples=sum(each.samples for each in profile.fits.values()),
                )
                self._done()
            finally:
                self.measuring = None
                if self._queue.get(fingerprint) is connection:
                    del self._queue[fingerprint]

    async def _measure(self, connection: Connection) -> Profile:
        sampling = Sampling(self._budget_s)
        while (sample := sampling.next()) is not None:
            await self._idle()
            self.measuring = (connection.facts.id, sampling.progress)
            began = time.monotonic()
            seconds = await self._sample(connection, sample)
            spent = time.monotonic() - began
            if seconds is None:
                sampling.skip(spent)
            else:
                sampling.record(sample, seconds, spent)
        described = {key: str(value) for key, value in asdict(connection.facts).items()}
        return await asyncio.to_thread(sampling.profile, described)

    async def _sample(self, connection: Connection, sample: Sample) -> float | None:
        """Median seconds of one sample; None if the device could not run it."""
        request = pb.MeasureRequest(
            program=program_message(sample.what.program),
            inputs=[
                pb.TensorSpec(tensor=each.tensor, data_type=each.data_type, dims=each.dims)
                for each in sample.what.inputs
            ],
            repeats=REPEATS,
            at_most_s=SAMPLE_AT_MOST_S,
        )
        try:
            reply = await connection.client.measure(request)
        except LostWorker:
            raise
        except ImbrexError:
            return None
        seconds = sorted(reply.seconds)
        return seconds[len(seconds) // 2] if seconds else None

    # ------------------------------------------------------------ disk

    def _load(self, fingerprint: str) -> Profile | None:
        path = self._folder / f"{fingerprint}.json"
        try:
            return parse_profile(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ImbrexError) as error:
            log.warning("a saved profile is ignored and measured again", error=str(error))
            return None

    def _save(self, fingerprint: str, profile: Profile) -> None:
        path = self._folder / f"{fingerprint}.json"
        with suppress(OSError):  # a full disk costs a measurement at the next start
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp")
            temporary.write_text(save_profile(profile))
            temporary.replace(path)
