"""The live cluster: connections, profiles, links and corrections, for planners."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace

import structlog

from coordinator.answers import Baseline, DeviceStatus, ProfileStatus
from coordinator.audit.collector import Collector
from coordinator.audit.examiner import Examiner
from coordinator.audit.verdict import Verdict
from coordinator.costs import Medium
from coordinator.costs.cluster import Cluster, Device, Link
from coordinator.costs.corrections import CorrectedCosts
from coordinator.costs.endpoints import HOST_ENDPOINT
from coordinator.devices.connection import Connection, ItemSink
from coordinator.devices.expected import LiveExpectations
from coordinator.devices.host_worker import (
    HostHardware,
    HostWorker,
    host_address,
    host_settings,
    host_token,
)
from coordinator.devices.link_file import load_links, save_links
from coordinator.devices.measured import DeviceMeasurements
from coordinator.devices.peer_reachability import Reach
from coordinator.devices.pool import Pool
from coordinator.devices.statuses import Statuses
from coordinator.devices.withheld import Withheld
from coordinator.devices.withheld_list import WithheldList
from coordinator.doctor.examine import examine
from coordinator.doctor.findings import Examined
from coordinator.library.loaded import Loaded
from coordinator.measuring.baseline import best_alone
from coordinator.measuring.probing import Probing
from coordinator.measuring.profiler import Profiler
from coordinator.measuring.retrials import Retrials
from coordinator.plans.plans import NO_WORKER
from coordinator.plans.switching import Observed
from coordinator.requests.admission import Admission
from coordinator.settings import CoordinatorSettings
from coordinator.tasks.task_graph import TaskGraph
from coordinator.tasks.timeline import TaskTimes
from coordinator.trust.cluster_state import ClusterState
from coordinator.trust.enrolment_server import Enrolment
from coordinator.trust.roster import Member
from coordinator.trust.trust import Trust
from protos.errors import ImbrexError, Unavailable
from protos.wire.facts import DeviceId, Facts

log = structlog.get_logger(__name__)

# What requests show of a device's event loop is saved with its profile after this many.
WORTH_KEEPING = frozenset({10, 100, 1000})


class LiveCluster:
    """Owns the pool of devices and everything measured about them."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        state: ClusterState,
        admission: Admission,
        changed: Callable[[str], None],
        sink: ItemSink,
        judged: Callable[[Verdict], None] = lambda _: None,
        hardware: HostHardware | None = None,
    ) -> None:
        """`sink` gets the messages of devices, `judged` the verdicts of their exams."""
        self._settings = settings
        self._changed = changed
        self._hardware = hardware or HostHardware()
        endpoint = self._hardware.endpoint
        self.trust = Trust.load(settings.state_dir, settings.secret, endpoint, state)
        certified = self.trust.certified
        self._enrolment = (
            Enrolment(certified, settings.enrol_host, settings.enrol_port)
            if certified and certified.authority.signs
            else None
        )
        self.pool = Pool(self.trust, sink, self._membership_changed, self._switched, self._gflops)
        near = replace(
            HOST_ENDPOINT,
            message_s=HOST_ENDPOINT.message_s + endpoint.message_s,
            byte_s=HOST_ENDPOINT.byte_s + endpoint.byte_s,
            task_s=HOST_ENDPOINT.task_s + endpoint.describe_s,
        )
        self._measured = DeviceMeasurements(near, load_links(settings.state_dir))
        self._reach = Reach()
        self._retrials = Retrials()
        self._probing = Probing(self.pool, self._measured, self._reach, admission, self._probed)
        self.expectations = LiveExpectations(self._measured, self._known, self.pool)
        self._profiler = Profiler(
            settings.state_dir / "profiles", self._profiled, admission, settings.profile_s, state
        )
        self.withheld_list = WithheldList(state)
        self.withheld = Withheld(self.withheld_list.drained())
        self.collector = Collector(self.pool)
        self.examiner = Examiner(self.pool, self.collector, judged, changed)
        self._statuses = Statuses(
            self.pool,
            self.withheld,
            self._measured,
            self._probing,
            self._profiler,
            self._reach,
            self.examiner,
        )
        self._host: HostWorker | None = None
        self._examining = asyncio.Lock()

    async def start(self) -> None:
        """Starts discovery, and the host worker if this machine computes."""
        settings, certified = self._settings, self.trust.certified
        if certified is not None and certified.roster.coordinator_ids():
            try:  # after a backup was restored on another device
                await asyncio.to_thread(certified.register, certified.state)
            except ImbrexError as error:
                log.warning("not on the list of coordinators", cause=error.cause)
        cluster = settings.cluster if settings.mdns else ""
        await self.pool.start(settings.workers, cluster, settings.interfaces)
        port = await self._enrolment.start() if self._enrolment else 0
        if settings.host_computes:
            try:
                token = await asyncio.to_thread(host_token, self.trust, settings, port)
            except Unavailable as error:
                log.error("this machine does not compute", cause=error.cause, cure=error.cure)
                return
            guarded = certified is not None or bool(settings.secret)
            address = host_address(settings, is_guarded=guarded)
            self._host = HostWorker(
                settings.state_dir / "worker",
                host_settings(settings, address, token),
                up=lambda address: self.pool.sighted(address, "host"),
                down=self.pool.withdrawn,
                command=self._hardware.worker,
            )
            await self._host.start()

    async def stop(self) -> None:
        """Stops everything that was started."""
        await self.examiner.close()
        await self._probing.stop()
        await self._profiler.stop()
        await self.pool.stop()
        if self._host is not None:
            await self._host.stop()
        if self._enrolment is not None:
            await self._enrolment.stop()

    # ------------------------------------------------------------ for planners

    def cluster(self, graph: TaskGraph | None = None) -> Cluster:
        """The devices that can be planned with now, and what is known of them: what other
        coordinators leave of their time. With `graph`, corrected by how fast they computed the
        tasks of that plan.
        """
        devices = tuple(
            _left_by_others(self._device(each.facts, graph), each)
            for each in self._present().values()
        )
        medium = self._settings.medium
        return Cluster(devices, medium, _uplink(medium, devices), self._reach.apart)

    def present(self) -> list[DeviceId]:
        """The devices that `cluster` is made of."""
        return list(self._present())

    def _present(self) -> dict[DeviceId, Connection]:
        now = time.monotonic()
        return {
            device: each
            for device, each in self.pool.ready().items()
            if self.withheld.of(device, now) is None and self.examiner.may_compute(each.facts)
        }

    def usable(self) -> list[DeviceId]:
        """Devices that may compute: those that plans may use, and those that are finishing."""
        now = time.monotonic()
        apart = {
            device: self.withheld.of(device, now)
            for device, each in self.pool.ready().items()
            if self.examiner.may_compute(each.facts)
        }
        return [device for device, why in apart.items() if why is None or not why.is_out]

    def observe(self, graph: TaskGraph, times: Sequence[TaskTimes]) -> None:
        """Corrects the costs of devices by the observed times of their tasks; measures devices
        again that have not been used for long.
        """
        now = time.monotonic()
        self._measured.observe(graph, times, self._known, now)
        for each in times:
            if computed := self.pool.get(DeviceId(each.device)):
                computed.others.computed(each.stop_s - each.start_s)
        for device, connection in self.pool.ready().items():
            seen = self._measured.endpoint(device)
            if seen.observations in WORTH_KEEPING:
                self._profiler.learned(connection.facts, seen.endpoint)
        self._try_again({DeviceId(each.device) for each in times}, now)
        self._probing.ask_when_due()

    def _try_again(self, used: Set[DeviceId], now: float) -> None:
        present = self._present()
        due = self._retrials.answered(used, present, now)
        for device in due:
            self._measured.forget(device)
        if due:
            cause = "devices without work measured again"
            self._measure(cause, [present[device].facts for device in due])

    def observed(self, now: float) -> Mapping[str, Observed]:
        """The present speeds of devices and links, from observed tasks, and what others leave."""
        ready = self.pool.ready()
        left = {
            f"others on {device}": Observed(math.log(each.others.slowdown))
            for device, each in ready.items()
        }
        return {**self._measured.observed(list(ready), now), **left}

    @property
    def departures(self) -> Mapping[str, int]:
        """Connections that ended by an error since the start, by the error's code."""
        return self.pool.losses

    def find(self, name: str) -> Facts:
        """The device with this id or name.

        Raises:
            NotFound: no such device is ready.
        """
        return self.pool.find(name).facts

    def _known(self, device: DeviceId) -> Device | None:
        """A device that can be used now."""
        facts = self.pool.facts(device)
        return self._device(facts) if facts else None

    def _device(self, facts: Facts, graph: TaskGraph | None = None) -> Device:
        return Device(
            id=facts.id,
            name=facts.name,
            costs=self._measured.costs(facts, self._profiler.profile(facts), graph),
            link=self._measured.link(facts.id),
            speed=facts.mhz_max * facts.cores * facts.pace,
            memory_bytes=facts.memory_bytes,
            host=self.pool.is_host(facts.id),
            concurrency=facts.concurrency if facts.limits is None else 1,
            limits=facts.limits,
        )

    def _gflops(self, facts: Facts) -> float:
        """The rate of a device, connected or not."""
        return self._measured.gflops(self._device(facts))

    async def release(self, programs: Iterable[str]) -> None:
        """Has every device drop these programs and the tensors that they keep."""
        await self.examiner.give_up(frozenset(programs))
        for connection in self.pool.ready().values():
            with suppress(ImbrexError):  # a device that is lost has none
                await connection.drop(programs)

    async def examine(self) -> Examined:
        """Examines devices and network. Takes a few seconds; one examination runs at a time."""
        async with self._examining:
            return await examine(self.pool, self._settings, self._gflops)

    # ------------------------------------------------------------ measuring

    def profile_again(self, name: str) -> ProfileStatus:
        """Measures a device (by id or name) when it is idle, even if its kind has a profile.

        Raises:
            NotFound: no such device is ready.
        """
        self._profiler.want(self.pool.find(name), again=True)
        return self.profile_of(name)

    def profile_of(self, name: str) -> ProfileStatus:
        """What was measured of a device (by id or name).

        Raises:
            NotFound: no such device is ready.
        """
        facts = self.find(name)
        profile, failure = self._profiler.profile(facts), self._profiler.failures.get(facts.id)
        share = self._profiler.progress(facts.id)
        if share is not None:
            state = "measuring" if share else "waiting"
        elif failure:
            state = "failed"
        else:
            state = "measured" if profile else "unmeasured"
        return ProfileStatus(facts.id, facts.name, state, share or 0.0, profile, failure)

    async def measure_whole(self, loaded: Loaded) -> Baseline:
        """Measures the best device on the whole, unsplit model, with its best number of threads.

        Raises:
            Unavailable: no device is ready.
        """
        devices = self.cluster().devices
        if not devices:
            raise NO_WORKER
        fastest = sorted(devices, key=lambda device: device.speed)
        connections = [self.pool.connection(each.id) for each in fastest]
        return await best_alone(connections, loaded)

    # ------------------------------------------------------------ changes

    def _membership_changed(self, cause: str) -> None:
        for device, connection in self.pool.ready().items():
            if self._measured.is_new(device, connection):
                self.examiner.joined(device)
                self._measure(f"link of {device} measured", [connection.facts])
                if self._settings.profile:
                    self._profiler.want(connection)
        self._probing.ask_when_due()
        self._changed(cause)

    def _measure(self, cause: str, devices: Sequence[Facts]) -> None:
        for facts in devices:
            self._measured.remember(facts.id, self._profiler.profile(facts))
        self._probing.links(cause, [facts.id for facts in devices])

    def members(self) -> list[Member]:
        """The members of the cluster; none if it has no authority."""
        certified = self.trust.certified
        return list(certified.roster.members().values()) if certified else []

    def _switched(self, device: DeviceId) -> None:
        """A connected device computes with another engine, and has compared it with onnxruntime."""
        connection = self.pool.connection(device)
        self.examiner.goes_on(connection.facts)
        self._measured.profiled(device)
        if self._settings.profile:
            self._profiler.want(connection)
        self._changed(f"{device} computes with {connection.facts.engine}")

    def statuses(self) -> list[DeviceStatus]:
        """Every known address, for people; ready devices first."""
        return self._statuses.all(self._device)

    def _probed(self, cause: str) -> None:
        folder, links = self._settings.state_dir, dict(self._measured.links)
        # In a thread: an SD card may take seconds to write.
        asyncio.get_running_loop().run_in_executor(None, save_links, folder, links)
        self._changed(cause)

    def _profiled(self) -> None:
        """Devices were starting, and then busy measuring: their links are probed again
        undisturbed.
        """
        for device in self.pool.ready():
            self._measured.profiled(device)
        self._probing.links("profile measured", self.pool.ready())


def _left_by_others(device: Device, connection: Connection) -> Device:
    """The device as slow as it is for one of several coordinators."""
    slowdown = connection.others.slowdown
    if slowdown == 1:
        return device
    return replace(device, costs=CorrectedCosts(device.costs, slowdown))


def _uplink(medium: Medium, devices: Sequence[Device]) -> Link | None:
    """In a star: the host's one cable, as fast as the fastest link through it."""
    cables = [device.link.bytes_per_s for device in devices if not device.host]
    return Link(max(cables)) if medium == "star" and cables else None
