"""The coordinator: devices, profiles, plans and execution behind one small interface."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from coordinator.answers import (
    Answer,
    Baseline,
    DeviceStatus,
    Diagnosis,
    PlanNow,
    ProfileStatus,
    ServedModel,
)
from coordinator.audit.auditor import Auditor
from coordinator.audit.verdict import Verdict
from coordinator.cluster.host_worker import Hardware
from coordinator.cluster.roster import Member
from coordinator.cluster.state import open_state
from coordinator.control.choice import IN_FORCE, Choice
from coordinator.control.sent_plan import adopt, plan_id
from coordinator.doctor.examine import diagnose
from coordinator.doctor.findings import of_models, of_no_exam, of_quarantine, of_state
from coordinator.doctor.frigate import InTime, in_time
from coordinator.execution.driver import Driver
from coordinator.execution.flight import Flight
from coordinator.execution.trace import Lived, chrome_trace
from coordinator.library.loaded import Library
from coordinator.library.naming import Names
from coordinator.planning.simulate.simulator import simulate
from coordinator.runtime.controller import Controller
from coordinator.runtime.describe import Described, describe
from coordinator.runtime.feeds import Arrays, Entrances, Reading, read_feeds
from coordinator.runtime.journal import Ended, Journal
from coordinator.runtime.live import LiveCluster
from coordinator.runtime.plan_making import Maker
from coordinator.runtime.planners import planner_of, strategy
from coordinator.runtime.served import Served
from coordinator.runtime.settling import Settling
from coordinator.runtime.statuses import away
from coordinator.runtime.withdrawal import Withdrawal
from coordinator.settings import CoordinatorSettings
from coordinator.sharing.follower import follower_of
from coordinator.tasks.events import RequestId
from coordinator.tasks.graph import TaskGraph
from coordinator.tasks.plan import Plan
from models.selection import NO_SELECTION, Selections
from models.units import Network
from protos import imbrex_pb2 as pb
from protos.errors import BadRequest, ImbrexError, NotFound, Unavailable
from protos.facts import DeviceId

# Folder in the state directory for the weights of loaded models.
WEIGHTS_FOLDER = "weights"


class Coordinator:
    """One per process. All methods run on its event loop."""

    def __init__(self, settings: CoordinatorSettings, hardware: Hardware | None = None) -> None:
        for name in (settings.strategy, *settings.planners):
            strategy(name)  # an unknown name is refused at start
        self._settings = settings
        self.journal = Journal()
        self.state = open_state(settings.state_dir)
        self._live = LiveCluster(
            settings,
            self.state,
            self._changed,
            self._received,
            self._idle,
            self._judged,
            hardware,
        )
        self._sharing = follower_of(
            self.state,
            self._live.trust,
            settings.enrol_host,
            settings.share_port,
            self._models_changed,
        )
        self.names = Names(
            settings.models, settings.model_repository, settings.detector, self._awaited
        )
        self._library = Library(
            lambda source: self.names.public(source)[0],
            settings.state_dir / WEIGHTS_FOLDER,
            settings.max_models_bytes,
            self._let_go,
        )
        self._driver = Driver(self._live, self._live.expectations, self._accused, self._hold)
        self._auditor = Auditor(
            settings.audit_every,
            self._live.collector,
            self._live.examiner.arbiter,
            self._live,
            self._judged,
            self._driver.release,
        )
        own = (settings.strategy, *settings.planners)
        maker = Maker(
            self._library, partial(planner_of, own), self._live, settings.objective, settings.wire
        )
        self._controller = Controller(settings, maker, self._live, self._planned)
        self._plans = self._controller.plans
        self._withdrawal = Withdrawal(self._live, self._controller, self._driver, self._changed)
        self.served = Served(self.names, self._library, self._controller, self._live)
        self._entrances = Entrances()
        self._examining = asyncio.Lock()
        self._frigates = ""
        self._background: list[asyncio.Task[None]] = []
        self._settling = Settling(self._learn)

    @property
    def settings(self) -> CoordinatorSettings:
        """The settings that it was started with."""
        return self._settings

    @property
    def queue_depth(self) -> int:
        """Requests that wait to be computed."""
        return self._controller.admission.waiting

    @property
    def in_flight(self) -> int:
        """Requests that are computed now."""
        return self._controller.admission.running

    async def start(self) -> None:
        """Starts discovery and the loading of models; returns at once."""
        self._settings.state_dir.mkdir(parents=True, exist_ok=True)
        self.state.follow()
        await self._live.start()
        if self._sharing is not None:
            await self._sharing.start(self._settings.state_dir)
        self._background.append(asyncio.create_task(self._withdrawal.follow()))
        self._background.append(asyncio.create_task(self.served.load_configured()))

    async def stop(self) -> None:
        """Stops everything that was started."""
        self.settle()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._sharing is not None:
            await self._sharing.stop()
        await self.served.close()
        await self._withdrawal.close()
        await self._controller.close()
        await self._auditor.close()
        await self._driver.close()
        await self._live.stop()
        await asyncio.to_thread(self.state.close)

    # ------------------------------------------------------------ what people see

    def devices(self) -> list[DeviceStatus]:
        """Every known device, ready or not."""
        refused = self._driver.scheduler.refused

        def counted(status: DeviceStatus) -> DeviceStatus:
            device = DeviceId(status.id)
            tasks, audited, wrong = self._auditor.sampling.tally(device)
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

    async def plan(self, model: str, choice: Choice = IN_FORCE) -> tuple[Plan, Network]:
        """The plan in force for a model, or the chosen one, made if necessary, with the predictions
        that it was made with.

        Raises:
            NotFound: no such strategy, or no such plan was sent.
            Unavailable: no worker is ready.
        """
        network = (await self.served.get(model)).network
        graph = await self._controller.current(model, choice)
        return replace(graph.plan, made_for=self._plans.made_for(model, choice)), network

    async def now(self, model: str, choice: Choice = IN_FORCE) -> PlanNow:
        """What an existing plan would be predicted to take at the present speeds of devices and
        links, and as its own tasks ran.

        Raises:
            NotFound: there is no such plan now.
            Unavailable: one of its devices is away.
        """
        graph = self._made(model, choice)
        network = (await self.served.get(model)).network
        plan, cluster = graph.plan, self._live.cluster(graph)
        gone = set(plan.devices) - {device.id for device in cluster.devices}
        if gone:
            raise Unavailable(
                cause=f"plan {plan.version} needs {', '.join(sorted(gone))}, which is away",
                cure="Wait until it is back, or for the next plan",
            )
        simulation = await asyncio.to_thread(simulate, plan, network, cluster)
        name = self.names.public(model)[0]
        return PlanNow(name, plan.version, plan.predicted_latency_s, simulation.latency_s)

    async def made_plan(self, model: str, choice: Choice = IN_FORCE) -> tuple[Plan, Network]:
        """As `plan`, but only if the plan exists: nothing is loaded, planned or sent.

        Raises:
            NotFound: there is no such plan now.
        """
        self._made(model, choice)
        return await self.plan(model, choice)

    def _made(self, model: str, choice: Choice) -> TaskGraph:
        graph = self._plans.graph(model, choice)
        if graph is None or not self.served.is_loaded(model):
            name = self.names.public(model)[0]
            raise NotFound(
                cause=f"{name} has no such plan now",
                cure=f"Request it: POST /v1/models/{name}/plan",
            )
        return graph

    async def give_plan(self, model: str, text: bytes, *, hold: bool) -> tuple[str, Plan, Network]:
        """Accepts a plan as JSON and prepares it, for requests that choose it by the returned id,
        or (`hold`) puts it in force until `release_plan`.

        Raises:
            BadRequest, NotFound, IllegalPlan: it is not a plan, or not one for these devices.
        """
        network = (await self.served.get(model)).network
        plan = await asyncio.to_thread(adopt, text, network, self._live.cluster())
        put = self._controller.hold if hold else self._controller.keep
        return plan_id(plan), (await put(model, plan)).plan, network

    async def release_plan(self, model: str) -> None:
        """Returns to automatic planning for a model.

        Raises:
            NotFound: no plan is held for it.
        """
        if not self._plans.held(model):
            raise NotFound(
                cause=f"no plan is held for {model}",
                cure="Nothing to do: imbrex plans for this model by itself",
            )
        self._controller.release(model)

    async def drain(self, device: str) -> DeviceStatus:
        """Gives a device (by id or name) no more work until `resume`, even across restarts of the
        coordinator. When its present work is finished, its state is `drained`.

        Raises:
            NotFound: no such device is ready.
            Unavailable: the cluster's state cannot be changed at present.
        """
        return self._status(await self._withdrawal.drain(device))

    async def resume(self, device: str) -> DeviceStatus:
        """Uses a device again that was drained or is in quarantine.

        Raises:
            NotFound: no such device, or it was not set aside.
            Unavailable: the cluster's state cannot be changed at present.
        """
        return self._status(await self._withdrawal.resume(device))

    async def examine(self) -> Diagnosis:
        """Examines the devices and the network between them. Every device also computes some tasks
        of the plans in force.
        """
        async with self._examining:
            in_use = self._live.present()
            silent = await self._live.examiner.examine(in_use, self._plans.in_force())
        unasked = [of_no_exam(self._status(each), why) for each, why in silent.items()]
        quarantined = [each for each in self.devices() if each.state == "quarantined"]
        known = [*map(of_quarantine, quarantined), *unasked, *of_state(self.state)]
        known += of_models(self._awaited(), self._sharing.problems if self._sharing else ())
        return diagnose(await self._live.examine(), known, self.frigate)

    async def frigate_in_time(self, model: str) -> InTime:
        """Whether the detectors of Frigate are answered in time with its model, which
        `frigate` judges from now on.

        Raises:
            Unavailable: no worker is ready.
        """
        self._frigates = model
        plan, _ = await self.plan(model)
        return in_time(plan.predicted_latency_s, len(self._settings.frigate_zmq))

    @property
    def frigate(self) -> InTime | None:
        """Whether Frigate's detectors are answered in time by the plan in force; None before its
        model is loaded, and while there is no plan for it.
        """
        graph = self._plans.graph(self._frigates)
        if graph is None:
            return None
        return in_time(graph.plan.predicted_latency_s, len(self._settings.frigate_zmq))

    def _status(self, device: DeviceId) -> DeviceStatus:
        found = (each for each in self.devices() if each.id == device)
        return next(found, away(device))

    def profile_again(self, device: str) -> ProfileStatus:
        """Measures a device again when it is idle, for at most a minute."""
        return self._live.profile_again(device)

    def profile_of(self, device: str) -> ProfileStatus:
        """What was measured of a device, and the state of its measurement."""
        return self._live.profile_of(device)

    def described(self, stem: str) -> Described:
        """The present cluster as a cluster file."""
        return describe(self._live.cluster(), stem)

    # ------------------------------------------------------------ work

    async def infer(
        self,
        model: str | ServedModel,
        feeds: Arrays | Reading,
        request_id: str | None = None,
        choice: Choice = IN_FORCE,
        *,
        selections: Selections = NO_SELECTION,
    ) -> Answer:
        """One request: input tensors in, output tensors out, by the plan in force or a chosen one.
        `model` is a result of `served.get`, or a name for it. `feeds` may be a `Reading`, which is
        read when the request's turn has come. `selections` are what the caller looks at of the
        outputs: the rest of these may be zeros.

        Raises:
            BadRequest: tensors that the model does not take.
            NotFound: no such strategy, or no such plan was sent.
            Overloaded: too many requests are waiting.
            Unavailable: no worker is left.
        """
        arrived_s = time.monotonic()
        served = model if isinstance(model, ServedModel) else await self.served.get(model)
        request, source = request_id or uuid.uuid4().hex[:12], served.source
        try:
            async with self._controller.place():
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
        kept = replace(answer, outputs={})
        ended = Ended(
            request, source, arrived_s, ended_s, kept, tuple(times), None, sketch=graph.sketch
        )
        self._settling.add(graph, ended)
        return answer

    def settle(self) -> None:
        """Learns from the requests that were answered, and tells the journal of them. Interfaces
        call it when they have sent an answer, and whoever is about to read what was learnt;
        otherwise it happens a little later.
        """
        self._settling.settle()

    def _learn(self, graph: TaskGraph, ended: Ended) -> None:
        """Updates costs and links from a request that was answered."""
        self._live.observe(graph, ended.tasks)
        if self._settings.replan:
            self._controller.seen(ended.model, self._live.observed(ended.ended_s))
        self.journal.add(ended)

    def trace(self, request_id: str) -> dict[str, Any]:
        """The timeline of one of the latest requests, as Chrome trace events.

        Raises:
            NotFound: it is not remembered.
        """
        self.settle()
        ended = self.journal.find(request_id)
        assert ended.answer is not None, "`find` looks for answers"
        started_s = ended.arrived_s + ended.answer.timing.queue_s
        return chrome_trace(
            Lived(
                request_id=request_id,
                model=self.names.public(ended.model)[0],
                arrived_s=ended.arrived_s,
                started_s=started_s,
                ended_s=ended.ended_s,
                tasks=ended.tasks,
                sketch=ended.sketch,
                names={each.id: each.name for each in self.devices() if each.id},
            )
        )

    async def baseline(self, model: str) -> Baseline:
        """Measures the best device on the whole model in plain onnxruntime.

        Raises:
            Unavailable: no worker is ready.
        """
        loaded = await self._library.get(model)
        async with self._controller.place(alone=True):
            found = await self._live.measure_whole(loaded)
        self.served.baselines[model] = found
        return found

    # ------------------------------------------------------------ background

    async def _idle(self) -> None:
        await self._controller.idle()

    def _changed(self, cause: str) -> None:
        """Devices came or went, or something was measured."""
        self._driver.devices(self._live.usable())
        self._controller.changed(cause)

    def _awaited(self) -> dict[str, dict[str, str]]:
        return self._sharing.awaited() if self._sharing is not None else {}

    def _models_changed(self) -> None:
        """Versions came or went: configured models may be served now."""
        self.names.refresh()
        loading = asyncio.create_task(self.served.load_configured())
        self._background.append(loading)
        loading.add_done_callback(self._background.remove)

    def _let_go(self, model: str) -> bool:
        return self.served.let_go(model)

    def _planned(self, model: str, version: int, causes: Sequence[str]) -> None:
        """A plan took over."""
        self.journal.planned(model, version, causes)
        graph = self._plans.graph(model)
        if graph is not None:
            self._live.examiner.planned(graph)

    def _hold(self, request: RequestId, flight: Flight, devices: Sequence[DeviceId]) -> bool:
        return self._auditor.hold(request, flight, devices)

    def _judged(self, verdict: Verdict) -> None:
        """An audit has computed a task again."""
        self._auditor.sampling.judged(verdict.device, wrong=verdict.wrong)
        if verdict.wrong:
            self._withdrawal.wrong(verdict.device, str(verdict), proven=True)
            self.settle()
            self.journal.doubt(verdict.device)

    def _accused(self, device: DeviceId, cause: str) -> None:
        self._auditor.sampling.suspected(device)
        self._withdrawal.wrong(device, cause)

    def _received(
        self, device: DeviceId, item: pb.Item, payload: np.ndarray | memoryview | None
    ) -> None:
        if not self._live.collector.received(device, item, payload):
            self._driver.received(device, item, payload)
