"""What is measured of devices beside their work: links, profiles, whole networks."""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path

import structlog

from coordinator.answers import Baseline, ProfileStatus
from coordinator.devices.announcements import Announcements, DevicesChanged
from coordinator.devices.devices import Devices
from coordinator.devices.link_file import save_links
from coordinator.library.loaded import Library
from coordinator.measuring.baseline import baseline_of
from coordinator.measuring.profiler import Profiler
from coordinator.measuring.queues import LinkNews, LinkQueue, Retrials
from coordinator.plans.book import NO_WORKER
from coordinator.requests.admission import Admission
from coordinator.settings import CoordinatorSettings
from coordinator.tasks.task_graph import TaskGraph
from coordinator.tasks.timeline import TaskTimes
from protos.errors import LostWorker
from protos.wire.facts import DeviceId

# What requests show of a device's event loop is saved with its profile after this many.
WORTH_KEEPING = frozenset({10, 100, 1000})

_log = structlog.get_logger(__name__)
# By then links are probed, however many requests there are.
_MOST_BUSY_S = 30.0


class Probing:
    """Probes links one after the other, when no request is being computed, and asks devices which
    others they reach; announces what is new.
    """

    def __init__(
        self, devices: Devices, admission: Admission, announcements: Announcements, state_dir: Path
    ) -> None:
        self._pool, self._measured = devices.pool, devices.measured
        self._reach = devices.reach
        self._admission = admission
        self._announcements = announcements
        self._state_dir = state_dir
        self._links = LinkQueue()
        self._doubt: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether a probe or a question is pending."""
        return bool(self._tasks)

    @property
    def unprobed(self) -> set[DeviceId]:
        """Devices whose link is being probed, or waits to be."""
        return self._links.unprobed

    def links(self, cause: str, devices: Iterable[DeviceId]) -> None:
        """Begins to measure these links; `cause` is reported when that is done."""
        self._go_on(self._links.want(cause, devices))

    def ask_when_due(self) -> None:
        """Asks the devices which others they reach, if that may have changed."""
        if self._reach.is_due(self._pool.ready()):
            self._start(self._ask())

    async def stop(self) -> None:
        """Stops probes and questions."""
        if self._doubt:
            self._doubt.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _go_on(self, news: LinkNews) -> None:
        causes, device = news
        if device is not None:
            self._start(self._probe(device))
        for cause in causes:
            # In a thread: an SD card may take seconds to write.
            links = dict(self._measured.links)
            asyncio.get_running_loop().run_in_executor(None, save_links, self._state_dir, links)
            self._announcements.announce(DevicesChanged(cause))

    async def _probe(self, device: DeviceId) -> None:
        await self._admission.idle(_MOST_BUSY_S)
        transfers, rate = self._pool.transfers, 0.0
        try:
            await self._measured.probe(device, self._pool.connection(device))
            rate = self._measured.link(device).bytes_per_s
        except LostWorker:
            pass  # the link is probed when the device comes back
        except Exception:
            _log.exception("a link cannot be probed", device=device)
        disturbed = transfers != self._pool.transfers
        self._go_on(self._links.probed(rate, disturbed=disturbed))

    async def _ask(self) -> None:
        if await self._reach.ask(self._pool.ready()):
            cause = "devices can or cannot reach each other now"
            self._announcements.announce(DevicesChanged(cause))
        if self._doubt:
            self._doubt.cancel()
        if self._reach.apart:
            self._doubt = asyncio.get_running_loop().call_later(
                self._reach.doubt_s, self.ask_when_due
            )


class Measuring:
    """Measures devices when they join, when they are idle, and when they were not used for long."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        devices: Devices,
        library: Library,
        admission: Admission,
        announcements: Announcements,
    ) -> None:
        self._measures_kinds = settings.profile
        self._devices = devices
        self._library = library
        self._admission = admission
        # What one device took for each model that was measured so, until it is unloaded.
        self.baselines: dict[str, Baseline] = {}
        self._retrials = Retrials()
        self._probing = Probing(devices, admission, announcements, settings.state_dir)
        self._profiler = Profiler(devices.profiles, announcements, admission, settings.profile_s)

    async def stop(self) -> None:
        """Stops everything that is being measured."""
        await self._probing.stop()
        await self._profiler.stop()

    @property
    def unprobed(self) -> set[DeviceId]:
        """Devices whose link is being probed, or waits to be."""
        return self._probing.unprobed

    def joined(self, device: DeviceId) -> None:
        """A device is connected: its link is measured, and its speed if its kind is new."""
        self._devices.measured.connected(device)
        self._measure(f"link of {device} measured", [device])
        self._want(device)

    def devices_changed(self) -> None:
        """Devices came or went: those that are there are asked which others they reach."""
        self._probing.ask_when_due()

    def switched(self, device: DeviceId) -> None:
        """A device computes with another engine."""
        self._devices.measured.profiled(device)
        self._want(device)

    def profiled(self) -> None:
        """Devices were starting, and then busy measuring: their links are probed again
        undisturbed.
        """
        ready = self._devices.pool.ready()
        for device in ready:
            self._devices.measured.profiled(device)
        self._probing.links("profile measured", ready)

    def observe(self, graph: TaskGraph, times: Sequence[TaskTimes]) -> None:
        """Corrects the costs of devices by the observed times of their tasks; measures devices
        again that have not been used for long.
        """
        now, devices = time.monotonic(), self._devices
        devices.measured.observe(graph, times, devices.known, now)
        for timed in times:
            if connection := devices.pool.get(DeviceId(timed.device)):
                connection.others.computed(timed.stop_s - timed.start_s)
        for device, connection in devices.pool.ready().items():
            seen = devices.measured.endpoint(device)
            if seen.observations in WORTH_KEEPING:
                devices.profiles.learned(connection.facts, seen.endpoint)
        used = {DeviceId(timed.device) for timed in times}
        due = self._retrials.answered(used, devices.plannable(now), now)
        for device in due:
            devices.measured.forget(device)
        if due:
            self._measure("devices without work measured again", due)
        self._probing.ask_when_due()

    def _measure(self, cause: str, devices: Sequence[DeviceId]) -> None:
        for device in devices:
            if facts := self._devices.pool.facts(device):
                self._devices.measured.remember(device, self._devices.profiles.of(facts))
        self._probing.links(cause, devices)

    def _want(self, device: DeviceId) -> None:
        if self._measures_kinds and (connection := self._devices.pool.get(device)):
            self._profiler.want(connection)

    # ------------------------------------------------------------ for people

    def profile_again(self, name: str) -> ProfileStatus:
        """Measures a device (by id or name) when it is idle, even if its kind has a profile.

        Raises:
            NotFound: no such device is ready.
        """
        self._profiler.want(self._devices.pool.find(name), again=True)
        return self.profile_of(name)

    def profile_of(self, name: str) -> ProfileStatus:
        """What was measured of a device (by id or name).

        Raises:
            NotFound: no such device is ready.
        """
        facts = self._devices.pool.find(name).facts
        profile, failure = self._devices.profiles.of(facts), self._profiler.failures.get(facts.id)
        share = self._profiler.progress(facts.id)
        if share is not None:
            state = "measuring" if share else "waiting"
        elif failure:
            state = "failed"
        else:
            state = "measured" if profile else "unmeasured"
        return ProfileStatus(facts.id, facts.name, state, share or 0.0, profile, failure)

    async def baseline(self, model: str) -> Baseline:
        """Measures the best device, with its best number of threads, on the whole model by its
        fastest engine.

        Raises:
            NotFound, BadRequest: no such model, or it cannot be used.
            Unavailable: no device is ready.
        """
        loaded = await self._library.load(model)
        async with self._admission.place(alone=True):
            devices = self._devices.cluster().devices
            if not devices:
                raise NO_WORKER
            fastest = sorted(devices, key=lambda device: device.speed)
            pairs = [(device, self._devices.pool.connection(device.id)) for device in fastest]
            baseline = self.baselines[model] = await baseline_of(pairs, loaded)
        return baseline

    def forget(self, model: str) -> None:
        """A model was replaced or unloaded."""
        self.baselines.pop(model, None)
        self._devices.measured.forget_model(self._library.names.public(model)[0])
