"""The coordinator: devices, profiles, plans and execution behind one small interface."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from coordinator.answers import Answer, DeviceStatus, ProfileStatus, ServedModel
from coordinator.devices.describe import Described, describe
from coordinator.devices.host_worker import HostHardware
from coordinator.devices.statuses import status_of
from coordinator.doctor.doctor import Doctor
from coordinator.plans.choice import IN_FORCE, Choice
from coordinator.plans.served_plans import ServedPlans
from coordinator.requests.input_variants import Entrances, FeedReader, read_feeds
from coordinator.requests.journal import Ended
from coordinator.requests.trace import chrome_trace
from coordinator.runtime.runtime import Runtime
from coordinator.settings import CoordinatorSettings
from coordinator.trust.roster import Member
from models.tensors.arrays import Arrays
from models.tensors.selection import NO_SELECTION, Selections
from protos.errors import BadRequest, ImbrexError, NotFiniteAnswer
from protos.wire.facts import DeviceId


class Coordinator:
    """One per process. All methods run on its event loop."""

    def __init__(self, settings: CoordinatorSettings, hardware: HostHardware | None = None) -> None:
        self.settings = settings
        self._runtime = runtime = Runtime(settings, hardware)
        self._live, self._driver = runtime.live, runtime.driver
        self._controller = runtime.controller
        self.journal, self.state = runtime.journal, runtime.state
        self.names, self.served = runtime.names, runtime.served
        self.plans = ServedPlans(self.names, self.served, self._controller, self._live)
        self.doctor = Doctor(runtime, self.plans, self.devices)
        self._entrances = Entrances()

    @property
    def queue_depth(self) -> int:
        """Requests that wait to be computed."""
        return self._runtime.admission.waiting

    @property
    def in_flight(self) -> int:
        """Requests that are computed now."""
        return self._runtime.admission.running

    @property
    def departures(self) -> Mapping[str, int]:
        """Connections to devices that ended by an error since the start, by the error's code."""
        return self._live.departures

    async def start(self) -> None:
        """Starts discovery and the loading of models; returns at once."""
        await self._runtime.start()

    async def stop(self) -> None:
        """Stops everything that was started."""
        await self._runtime.stop()

    # ------------------------------------------------------------ devices

    def devices(self) -> list[DeviceStatus]:
        """Every known device, ready or not."""
        refused = self._driver.scheduler.refused

        def counted(status: DeviceStatus) -> DeviceStatus:
            device = DeviceId(status.id)
            tasks, audited, wrong = self._runtime.auditor.sampling.tally(device)
            return replace(
                status,
                refused_results=refused[device],
                tasks=tasks,
                audited_tasks=audited,
                wrong_tasks=wrong,
            )

        return list(map(counted, self._live.statuses()))

    def members(self) -> list[Member]:
        """The members of the cluster; none if it has no authority."""
        return self._live.members()

    async def drain(self, device: str) -> DeviceStatus:
        """Gives a device (by id or name) no more work until `resume`, even across restarts of the
        coordinator. When its present work is finished, its state is `drained`.

        Raises:
            NotFound: no such device is ready.
            Unavailable: the cluster's state cannot be changed at present.
        """
        return status_of(await self._runtime.withdrawal.drain(device), self.devices())

    async def resume(self, device: str) -> DeviceStatus:
        """Uses a device again that was drained or is in quarantine.

        Raises:
            NotFound: no such device, or it was not set aside.
            Unavailable: the cluster's state cannot be changed at present.
        """
        return status_of(await self._runtime.withdrawal.resume(device), self.devices())

    def profile_again(self, device: str) -> ProfileStatus:
        """Measures a device again when it is idle, for at most a minute."""
        return self._live.profile_again(device)

    def profile_of(self, device: str) -> ProfileStatus:
        """What was measured of a device, and the state of its measurement."""
        return self._live.profile_of(device)

    def described(self, stem: str) -> Described:
        """The present cluster as a cluster file."""
        return describe(self._live.cluster(), stem)

    # ------------------------------------------------------------ requests

    async def infer(
        self,
        model: str | ServedModel,
        feeds: Arrays | FeedReader,
        request_id: str | None = None,
        choice: Choice = IN_FORCE,
        *,
        selections: Selections = NO_SELECTION,
    ) -> Answer:
        """One request: input tensors in, output tensors out, by the plan in force or a chosen one.
        `model` is a result of `served.get`, or a name for it. `feeds` may be a `FeedReader`, which
        is read when the request's turn has come. `selections` are what the caller looks at of the
        outputs: the rest of these may be zeros.

        Raises:
            BadRequest: tensors that the model does not take.
            NotFound: no such strategy, or no such plan was sent.
            Overloaded: too many requests are waiting.
            Unavailable: no worker is left.
        """
        async with self.answering(
            model, feeds, request_id, choice, selections=selections
        ) as answer:
            return answer

    @asynccontextmanager
    async def answering(
        self,
        model: str | ServedModel,
        feeds: Arrays | FeedReader,
        request_id: str | None = None,
        choice: Choice = IN_FORCE,
        *,
        selections: Selections = NO_SELECTION,
    ) -> AsyncIterator[Answer]:
        """The answer of `infer`, while it is read: a request whose reader raises `NotFiniteAnswer`
        has ended with this error.

        Raises:
            ImbrexError: as `infer`.
        """
        arrived_s = time.monotonic()
        served = model if isinstance(model, ServedModel) else await self.served.get(model)
        request, source = request_id or uuid.uuid4().hex[:12], served.source
        try:
            async with self._runtime.admission.place():
                admitted_s = time.monotonic()
                given = await read_feeds(feeds, served.network)
                read_s = time.monotonic() - admitted_s
                async with self._controller.turn(source, choice) as turn:
                    graph, sent = await self._entrances.fitting(turn, served.network, given)
                    started_s = time.monotonic()
                    answer, times = await self._driver.run(graph, sent, request, selections)
        except BadRequest:
            raise  # an error of the caller says nothing about the cluster
        except ImbrexError as error:
            self.journal.add(Ended(request, source, arrived_s, time.monotonic(), None, (), error))
            raise
        ended_s = time.monotonic()
        queue_s = started_s - arrived_s - read_s
        timing = replace(answer.timing, queue_s=queue_s, total_s=answer.timing.total_s + queue_s)
        answer = replace(answer, timing=timing)
        unread: NotFiniteAnswer | None = None
        try:
            yield answer
        except NotFiniteAnswer as error:
            served.sightings.not_finite += 1
            unread = error
            raise
        finally:
            kept = replace(answer, outputs={})
            ended = Ended(
                request, source, arrived_s, ended_s, kept, tuple(times), unread, sketch=graph.sketch
            )
            self._runtime.after_answer.add(graph, ended)

    def settle(self) -> None:
        """Learns from the requests that were answered, and tells the journal of them. Interfaces
        call it when they have sent an answer, and whoever is about to read what was learnt;
        otherwise it happens a little later.
        """
        self._runtime.after_answer.settle()

    def trace(self, request_id: str) -> dict[str, Any]:
        """The timeline of one of the latest requests, as Chrome trace events.

        Raises:
            NotFound: it is not remembered.
        """
        self.settle()
        ended = self.journal.find(request_id)
        names = {each.id: each.name for each in self.devices() if each.id}
        return chrome_trace(ended.lived(self.names.public(ended.model)[0], names))
