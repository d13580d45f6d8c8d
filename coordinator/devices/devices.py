"""The devices of the cluster: which may compute, and what was measured of them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

import structlog

from coordinator.costs.cluster import Cluster, Device, Link
from coordinator.costs.corrections import CorrectedCosts, Observed
from coordinator.costs.endpoints import HOST_ENDPOINT
from coordinator.devices.addresses import seconds_ago
from coordinator.devices.announcements import Announcements, DeviceLeft
from coordinator.devices.connection import Connection, Receiver
from coordinator.devices.host_worker import (
    HostHardware,
    HostWorker,
    host_address,
    host_settings,
    host_token,
)
from coordinator.devices.link_file import load_links
from coordinator.devices.measured import DeviceMeasurements
from coordinator.devices.peer_reachability import Reach
from coordinator.devices.pool import Pool
from coordinator.devices.profiles import Profiles
from coordinator.devices.withheld import Withheld
from coordinator.devices.withheld_list import WithheldList
from coordinator.settings import CoordinatorSettings
from coordinator.tasks.task_graph import TaskGraph
from coordinator.trust.cluster_state import ClusterState
from coordinator.trust.enrolment_server import Enrolment
from coordinator.trust.roster import Member
from coordinator.trust.trust import Trust
from protos.errors import ImbrexError, StreamRefused, Unavailable
from protos.wire.facts import DeviceId, Facts

log = structlog.get_logger(__name__)


class Devices:
    """Which devices there are, which of them may compute, and how fast they are."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        state: ClusterState,
        announcements: Announcements,
        hardware: HostHardware,
    ) -> None:
        self._settings = settings
        self._hardware = hardware
        endpoint = hardware.endpoint
        self.trust = Trust.load(settings.state_dir, settings.secret, endpoint, state)
        certified = self.trust.certified
        self._enrolment = (
            Enrolment(certified, settings.enrol_host, settings.enrol_port)
            if certified and certified.authority.signs
            else None
        )
        self.pool = Pool(self.trust, announcements)
        near = replace(
            HOST_ENDPOINT,
            message_s=HOST_ENDPOINT.message_s + endpoint.message_s,
            byte_s=HOST_ENDPOINT.byte_s + endpoint.byte_s,
            task_s=HOST_ENDPOINT.task_s + endpoint.describe_s,
        )
        self.measured = DeviceMeasurements(near, load_links(settings.state_dir))
        self.profiles = Profiles(settings.state_dir / "profiles", state)
        self.reach = Reach()
        self.withheld_list = WithheldList(state)
        self.withheld = Withheld(self.withheld_list.drained())
        self._host: HostWorker | None = None

    async def start(self, receiver: Receiver) -> None:
        """Starts discovery, and the host worker if this machine computes. `receiver` gets what
        devices send.
        """
        settings, certified = self._settings, self.trust.certified
        if certified is not None and certified.roster.coordinator_ids():
            try:  # after a backup was restored on another device
                await asyncio.to_thread(certified.register, certified.state)
            except ImbrexError as error:
                log.warning("not on the list of coordinators", cause=error.cause)
        cluster = settings.cluster if settings.mdns else ""
        await self.pool.start(receiver, settings.workers, cluster, settings.interfaces)
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
                self.pool,
                self._hardware.worker,
            )
            await self._host.start()

    async def stop(self) -> None:
        """Stops everything that was started."""
        await self.profiles.saved()
        await self.pool.stop()
        if self._host is not None:
            await self._host.stop()
        if self._enrolment is not None:
            await self._enrolment.stop()

    # ------------------------------------------------------------ which may compute

    def plannable(self, now: float | None = None) -> dict[DeviceId, Connection]:
        """Devices that plans may use."""
        withheld = self._withheld(now)
        return {
            device: connection
            for device, connection in self.pool.ready().items()
            if device not in withheld
        }

    def usable(self, now: float | None = None) -> list[DeviceId]:
        """Devices that may compute: those that plans may use, and those that are finishing."""
        withheld = self._withheld(now)
        return [
            device for device in self.pool.ready() if device not in withheld or not withheld[device]
        ]

    def _withheld(self, now: float | None) -> dict[DeviceId, bool]:
        """The connected devices that are set aside, and whether they may not even finish."""
        now = time.monotonic() if now is None else now
        reasons = (
            (device, self.withheld.of(device, now, connection.facts))
            for device, connection in self.pool.ready().items()
        )
        return {device: reason.is_out for device, reason in reasons if reason is not None}

    def members(self) -> list[Member]:
        """The members of the cluster; none if it has no authority."""
        certified = self.trust.certified
        return list(certified.roster.members().values()) if certified else []

    # ------------------------------------------------------------ how fast they are

    def cluster(self, graph: TaskGraph | None = None, model: str = "") -> Cluster:
        """The devices that plans may use, and what is known of them: what other coordinators leave
        of their time. With `graph`, corrected by how fast they computed the tasks of that plan; for
        its model, or a `model`, with what they were measured to take for the whole of it.
        """
        devices = tuple(
            _left_by_others(self.described(connection.facts, graph, model), connection)
            for connection in self.plannable().values()
        )
        # In a star: the host's one cable, as fast as the fastest link through it.
        medium, uplink = self._settings.medium, None
        cables = [device.link.bytes_per_s for device in devices if not device.host]
        if medium == "star" and cables:
            uplink = Link(max(cables))
        return Cluster(devices, medium, uplink, self.reach.apart)

    def known(self, device: DeviceId) -> Device | None:
        """A device that is connected, as planners see it."""
        facts = self.pool.facts(device)
        return self.described(facts) if facts else None

    def described(self, facts: Facts, graph: TaskGraph | None = None, model: str = "") -> Device:
        """A device, connected or not, as planners see it; `graph` and `model` as for `cluster`."""
        return Device(
            id=facts.id,
            name=facts.name,
            costs=self.measured.costs(facts, self.profiles.of(facts), graph),
            link=self.measured.link(facts.id),
            speed=facts.mhz_max * facts.cores * facts.pace,
            memory_bytes=facts.memory_bytes,
            host=self.pool.is_host(facts.id),
            concurrency=facts.concurrency if facts.limits is None else 1,
            limits=facts.limits,
            unsplit_s=self.measured.unsplit_s(
                graph.plan.model if graph else model, facts.id, graph
            ),
        )

    def gflops(self, facts: Facts) -> float:
        """The rate of a device, connected or not."""
        return self.measured.gflops(self.described(facts))

    def observed(self, now: float) -> Mapping[str, Observed]:
        """The present speeds of devices and links, from observed tasks, and what others leave."""
        ready = self.pool.ready()
        left = {
            f"others on {device}": Observed(math.log(connection.others.slowdown))
            for device, connection in ready.items()
        }
        return {**self.measured.observed(list(ready), now), **left}

    # ------------------------------------------------------------ changes

    async def release(self, programs: Iterable[str]) -> None:
        """Has every device drop these programs and the tensors that they keep."""
        for connection in self.pool.ready().values():
            with suppress(ImbrexError):  # a device that is lost has none
                await connection.drop(programs)

    def left(self, news: DeviceLeft) -> None:
        """Logs that a device is gone: its name, its rate, and when it was last heard."""
        facts = self.pool.last_facts(news.device)
        fields: dict[str, object] = {
            "device": news.device,
            "address": news.address,
            "reason": news.reason,
        }
        if isinstance(refusal := self.pool.departures.get(news.device), StreamRefused):
            log.error("a device refused what was sent to it", **fields, cure=refusal.cure)
            return
        if facts is not None:
            fields |= {"name": facts.name, "gflops": round(self.gflops(facts), 2)}
        log.warning("device left", **fields, last_seen=seconds_ago(news.silent_s))


def _left_by_others(device: Device, connection: Connection) -> Device:
    """The device as slow as it is for one of several coordinators."""
    slowdown = connection.others.slowdown
    if slowdown == 1:
        return device
    unsplit_s = device.unsplit_s and device.unsplit_s * slowdown
    return replace(device, costs=CorrectedCosts(device.costs, slowdown), unsplit_s=unsplit_s)
