"""The coordinator: devices, profiles, plans and execution behind one small interface."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Set
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from coordinator.answers import IN_FORCE, Answer, DeviceStatus, PlanChoice, ServedModel
from coordinator.audit.auditor import Auditor
from coordinator.audit.collector import Collector
from coordinator.audit.examiner import Examiner
from coordinator.audit.verdict import Verdict
from coordinator.devices.announcements import (
    Announcements,
    DeviceJoined,
    DeviceLeft,
    DevicesChanged,
    EngineSwitched,
)
from coordinator.devices.describe import Described, describe
from coordinator.devices.devices import Devices
from coordinator.devices.expected import LiveExpectations
from coordinator.devices.host_worker import HostHardware
from coordinator.devices.statuses import status_of, statuses
from coordinator.doctor.doctor import Doctor
from coordinator.draining.withdrawal import Withdrawal
from coordinator.library.loaded import Library, ModelForgotten, ModelLoaded
from coordinator.library.naming import Names
from coordinator.library.sharing import ModelsChanged, sharing_of
from coordinator.measuring.after_answer import AfterAnswer
from coordinator.measuring.measuring import Measuring
from coordinator.measuring.profiler import Profiled
from coordinator.measuring.unsplit import UnsplitTimes
from coordinator.plans.named import strategy
from coordinator.plans.plan_making import PlanMaker
from coordinator.plans.plans import Plans, TookOver
from coordinator.plans.served_models import ServedModels
from coordinator.requests.admission import Admission
from coordinator.requests.driver import Accused, Driver
from coordinator.requests.input_variants import FeedReader, InputVariants, check_feeds
from coordinator.requests.journal import Journal, RequestRecord
from coordinator.requests.trace import chrome_trace
from coordinator.settings import CoordinatorSettings
from coordinator.trust.open_state import open_state
from models.tensors.arrays import Arrays
from models.tensors.selection import NO_SELECTION, Selections
from protos.errors import BadRequest, ImbrexError, NotFiniteAnswer
from protos.wire.facts import DeviceId

# Folder in the state directory for the weights of loaded models.
WEIGHTS_FOLDER = "weights"


class Coordinator:
    """One per process. All methods run on its event loop.

    Each of its parts owns its state. Those further down know those above them, which announce what
    they do not know the readers of (`_listen`).
    """

    def __init__(self, settings: CoordinatorSettings, hardware: HostHardware | None = None) -> None:
        own = (settings.strategy, *settings.planners)
        for name in own:
            strategy(name)  # an unknown name is refused at start
        self.settings = settings
        self.journal = Journal()
        self.state = open_state(settings.state_dir)
        self.admission = Admission(settings.max_in_flight, settings.max_queue, settings.max_wait_s)
        self._announcements = news = Announcements()
        self.devices = devices = Devices(settings, self.state, news, hardware or HostHardware())
        trust, host = devices.trust, settings.enrol_host
        self.sharing = sharing_of(self.state, trust, host, settings.share_port, news)
        self.names = Names(
            settings.models, settings.model_repository, settings.detector, self.sharing
        )
        weights = settings.state_dir / WEIGHTS_FOLDER
        self.library = Library(self.names, weights, settings.max_models_bytes, news)
        maker = PlanMaker(self.library, own, devices.pool, settings.objective, settings.wire)
        self.plans = Plans(settings, self.library, maker, devices, news)
        self.served = ServedModels(self.library, self.plans, devices)
        self.requests = Driver(devices.pool, news, LiveExpectations(devices))
        self._collector = Collector(devices.pool, self.requests)
        self.examiner = Examiner(devices, self._collector, news)
        self.auditor = Auditor(
            settings.audit_every,
            self._collector,
            self.examiner.arbiter,
            devices.pool,
            self.requests,
            news,
        )
        self.measuring = Measuring(settings, devices, self.library, self.admission, news)
        self._unsplit = UnsplitTimes(devices, self.library, self.admission, self.plans)
        self.after_answer = AfterAnswer(
            self.measuring,
            devices,
            self.plans,
            self.journal,
            self._unsplit,
            replan=bool(settings.replan),
        )
        self.withdrawal = Withdrawal(
            devices, self.plans, self.requests, self.after_answer, self.journal
        )
        self.doctor = Doctor(
            settings, self.state, self.sharing, devices, self.examiner, self.plans, self.served
        )
        self._input_variants = InputVariants()
        self._background: set[asyncio.Task[None]] = set()
        self._listen()

    def _listen(self) -> None:
        """Who hears what of whom, in this order."""
        on = self._announcements.on
        on(DeviceJoined, lambda news: self.examiner.joined(news.device))
        on(DeviceJoined, lambda news: self.measuring.joined(news.device))
        on(DeviceLeft, self.devices.left)
        on(DevicesChanged, lambda news: self.withdrawal.devices_changed(news.cause))
        on(DevicesChanged, lambda news: self.measuring.devices_changed())
        on(EngineSwitched, lambda news: self.examiner.switched(news.device))
        on(EngineSwitched, lambda news: self.measuring.switched(news.device))
        on(Profiled, lambda news: self.measuring.profiled())
        on(ModelsChanged, lambda news: self._models_changed())
        on(TookOver, self.journal.tell)
        on(TookOver, lambda news: self.examiner.planned(news.graph))
        on(ModelLoaded, lambda news: self.library.make_room(news.model, self.plans.in_use))
        on(ModelForgotten, lambda news: self.measuring.forget(news.model))
        on(ModelForgotten, self._forgotten)
        on(Accused, lambda news: self.auditor.sampling.suspected(news.device))
        on(Accused, lambda news: self.withdrawal.wrong(news.device, news.cause))
        on(Verdict, lambda news: self.auditor.sampling.judged(news.device, wrong=news.wrong))
        on(Verdict, self.withdrawal.judged)

    async def start(self) -> None:
        """Starts discovery and the loading of models; returns at once."""
        self.settings.state_dir.mkdir(parents=True, exist_ok=True)
        self.state.follow()
        await self.devices.start(self.requests)
        await self.sharing.start(self.settings.state_dir)
        self._start(self.withdrawal.follow())
        self._start(self.served.load_configured())

    async def stop(self) -> None:
        """Stops everything that was started."""
        self.after_answer.settle()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.sharing.stop()
        await self.withdrawal.close()
        await self.plans.close()
        await self.auditor.close()
        await self.requests.close()
        await self.examiner.close()
        await self._unsplit.stop()
        await self.measuring.stop()
        await self.devices.stop()
        await asyncio.to_thread(self.state.close)

    def _models_changed(self) -> None:
        """Versions came or went: configured models may be served now."""
        self.names.refresh()
        self._start(self.served.load_configured())

    def _forgotten(self, news: ModelForgotten) -> None:
        programs = self.plans.forget(news.model)
        if not news.stays:
            self._start(self._release(programs))

    async def _release(self, programs: Set[str]) -> None:
        """Frees the programs of a model that is gone, once no request in flight needs them."""
        self.examiner.give_up(programs - self.plans.programs())
        await self.admission.idle()
        await self.devices.release(programs - self.plans.programs())

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # ------------------------------------------------------------ devices

    def device_statuses(self) -> list[DeviceStatus]:
        """Every known device, ready or not."""
        refused = self.requests.scheduler.refused

        def counted(status: DeviceStatus) -> DeviceStatus:
            device = DeviceId(status.id)
            tasks, audited, wrong = self.auditor.sampling.tally(device)
            return replace(
                status,
                refused_results=refused[device],
                tasks=tasks,
                audited_tasks=audited,
                wrong_tasks=wrong,
            )

        return list(map(counted, statuses(self.devices, self.measuring.unprobed)))

    async def drain(self, device: str) -> DeviceStatus:
        """Gives a device (by id or name) no more work until `resume`, even across restarts of the
        coordinator. When its present work is finished, its state is `drained`.

        Raises:
            NotFound: no such device is ready.
            Unavailable: the cluster's state cannot be changed at present.
        """
        return status_of(await self.withdrawal.drain(device), self.device_statuses())

    async def resume(self, device: str) -> DeviceStatus:
        """Uses a device again that was drained or is in quarantine.

        Raises:
            NotFound: no such device, or it was not set aside.
            Unavailable: the cluster's state cannot be changed at present.
        """
        return status_of(await self.withdrawal.resume(device), self.device_statuses())

    def described(self, stem: str) -> Described:
        """The present cluster as a cluster file."""
        return describe(self.devices.cluster(), stem)

    # ------------------------------------------------------------ requests

    async def infer(
        self,
        model: str | ServedModel,
        feeds: Arrays | FeedReader,
        request_id: str | None = None,
        choice: PlanChoice = IN_FORCE,
        *,
        selections: Selections = NO_SELECTION,
    ) -> Answer:
        """One request: input tensors in, output tensors out, by the plan in force or a chosen one.
        `model` is a result of `library.get`, or a name for it. `feeds` may be a `FeedReader`, which
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
        choice: PlanChoice = IN_FORCE,
        *,
        selections: Selections = NO_SELECTION,
    ) -> AsyncIterator[Answer]:
        """The answer of `infer`, while it is read: a request whose reader raises `NotFiniteAnswer`
        has ended with this error.

        Raises:
            ImbrexError: as `infer`.
        """
        arrived_s = time.monotonic()
        served = model if isinstance(model, ServedModel) else await self.library.get(model)
        request, source = request_id or uuid.uuid4().hex[:12], served.source
        try:
            async with self.admission.place():
                admitted_s = time.monotonic()
                given = await feeds() if callable(feeds) else feeds
                check_feeds(served.network, given)
                read_s = time.monotonic() - admitted_s
                async with self.plans.turn(source, choice) as turn:
                    graph, sent = await self._input_variants.fitting(turn, served.network, given)
                    started_s = time.monotonic()
                    computed = await self.requests.run(graph, sent, request, selections)
                    if not self.auditor.take(computed):
                        self.requests.release(computed.request, computed.state.holders)
        except BadRequest:
            raise  # an error of the caller says nothing about the cluster
        except ImbrexError as error:
            self.journal.add(
                RequestRecord(request, source, arrived_s, time.monotonic(), None, (), error)
            )
            raise
        ended_s = time.monotonic()
        queue_s = started_s - arrived_s - read_s
        timing = computed.answer.timing
        timing = replace(timing, queue_s=queue_s, total_s=timing.total_s + queue_s)
        answer = replace(computed.answer, timing=timing, decode_s=read_s)
        unread: NotFiniteAnswer | None = None
        try:
            yield answer
        except NotFiniteAnswer as error:
            served.sightings.not_finite += 1
            unread = error
            raise
        finally:
            kept = replace(answer, outputs={})
            ended = RequestRecord(
                request,
                source,
                arrived_s,
                ended_s,
                kept,
                tuple(computed.state.timeline.tasks),
                unread,
                sketch=graph.sketch,
            )
            self.after_answer.add(graph, ended)

    def settle(self) -> None:
        """Learns from the requests that were answered, and tells the journal of them. Interfaces
        call it when they have sent an answer, and whoever is about to read what was learnt;
        otherwise it happens a little later.
        """
        self.after_answer.settle()

    def trace(self, request_id: str) -> dict[str, Any]:
        """The timeline of one of the latest requests, as Chrome trace events.

        Raises:
            NotFound: it is not remembered.
        """
        self.settle()
        ended = self.journal.find(request_id)
        names = {status.id: status.name for status in self.device_statuses() if status.id}
        return chrome_trace(ended.lived(self.names.public(ended.model)[0], names))
