"""A running coordinator: its parts, and which of them hear what another notices."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import numpy as np

from coordinator.answers import Finding
from coordinator.audit.auditor import Auditor
from coordinator.audit.verdict import Verdict
from coordinator.devices.devices import LiveCluster
from coordinator.devices.host_worker import HostHardware
from coordinator.doctor.findings import of_models, of_state
from coordinator.draining.withdrawal import Withdrawal
from coordinator.library.loaded import Library
from coordinator.library.naming import Names
from coordinator.library.sharing import sharing_of
from coordinator.planning.planners.named import planner_of, strategy
from coordinator.plans.controller import Controller
from coordinator.plans.plan_making import PlanMaker
from coordinator.plans.served import Served
from coordinator.requests.admission import Admission
from coordinator.requests.after_answer import AfterAnswer
from coordinator.requests.driver import Driver
from coordinator.requests.journal import Journal
from coordinator.requests.request_state import RequestState
from coordinator.settings import CoordinatorSettings
from coordinator.tasks.events import RequestId
from coordinator.trust.open_state import open_state
from protos import imbrex_pb2 as pb
from protos.wire.facts import DeviceId

# Folder in the state directory for the weights of loaded models.
WEIGHTS_FOLDER = "weights"


class Runtime:
    """One per process; the service uses its parts."""

    def __init__(self, settings: CoordinatorSettings, hardware: HostHardware | None = None) -> None:
        for name in (settings.strategy, *settings.planners):
            strategy(name)  # an unknown name is refused at start
        self.settings = settings
        self.journal = Journal()
        self.state = open_state(settings.state_dir)
        self.admission = Admission(settings.max_in_flight, settings.max_queue, settings.max_wait_s)
        self.live = LiveCluster(
            settings,
            self.state,
            self.admission,
            self._changed,
            self._received,
            self._judged,
            hardware,
        )
        self._sharing = sharing_of(
            self.state,
            self.live.trust,
            settings.enrol_host,
            settings.share_port,
            self._models_changed,
        )
        self.names = Names(
            settings.models, settings.model_repository, settings.detector, self._sharing.awaited
        )
        self.library = Library(
            lambda source: self.names.public(source)[0],
            settings.state_dir / WEIGHTS_FOLDER,
            settings.max_models_bytes,
            self._let_go,
        )
        self.driver = Driver(self.live.pool, self.live.expectations, self._accused, self._hold)
        self.auditor = Auditor(
            settings.audit_every,
            self.live.collector,
            self.live.examiner.arbiter,
            self.live.pool,
            self._judged,
            self.driver.release,
        )
        own = (settings.strategy, *settings.planners)
        maker = PlanMaker(
            self.library,
            partial(planner_of, own),
            self.live.pool,
            settings.objective,
            settings.wire,
        )
        self.controller = Controller(settings, maker, self.live, self._planned)
        self.after_answer = AfterAnswer(
            self.live, self.controller, self.journal, replan=bool(settings.replan)
        )
        self.withdrawal = Withdrawal(self.live, self.controller, self.driver, self._changed)
        self.served = Served(self.names, self.library, self.admission, self.controller, self.live)
        self._background: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts discovery and the loading of models; returns at once."""
        self.settings.state_dir.mkdir(parents=True, exist_ok=True)
        self.state.follow()
        await self.live.start()
        await self._sharing.start(self.settings.state_dir)
        self._background.append(asyncio.create_task(self.withdrawal.follow()))
        self._background.append(asyncio.create_task(self.served.load_configured()))

    async def stop(self) -> None:
        """Stops everything that was started."""
        self.after_answer.settle()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._sharing.stop()
        await self.served.close()
        await self.withdrawal.close()
        await self.controller.close()
        await self.auditor.close()
        await self.driver.close()
        await self.live.stop()
        await asyncio.to_thread(self.state.close)

    def problems(self) -> list[Finding]:
        """Those of the cluster's state and of its models."""
        sharing = self._sharing
        return [*of_state(self.state), *of_models(sharing.awaited(), sharing.problems)]

    # ------------------------------------------------------------ requests

    def _received(
        self, device: DeviceId, item: pb.Item, payload: np.ndarray | memoryview | None
    ) -> None:
        if not self.live.collector.received(device, item, payload):
            self.driver.received(device, item, payload)

    # ------------------------------------------------------------ devices and plans

    def _changed(self, cause: str) -> None:
        """Devices came or went, or something was measured."""
        self.driver.devices(self.live.usable())
        self.controller.changed(cause)

    def _planned(self, model: str, version: int, causes: Sequence[str]) -> None:
        """A plan took over."""
        self.journal.planned(model, version, causes)
        graph = self.controller.plans.graph(model)
        if graph is not None:
            self.live.examiner.planned(graph)

    # ------------------------------------------------------------ models

    def _models_changed(self) -> None:
        """Versions came or went: configured models may be served now."""
        self.names.refresh()
        loading = asyncio.create_task(self.served.load_configured())
        self._background.append(loading)
        loading.add_done_callback(self._background.remove)

    def _let_go(self, model: str) -> bool:
        return self.served.let_go(model)

    # ------------------------------------------------------------ audits

    def _hold(self, request: RequestId, state: RequestState, devices: Sequence[DeviceId]) -> bool:
        return self.auditor.hold(request, state, devices)

    def _judged(self, verdict: Verdict) -> None:
        """An audit has computed a task again."""
        self.auditor.sampling.judged(verdict.device, wrong=verdict.wrong)
        if verdict.wrong:
            self.withdrawal.wrong(verdict.device, str(verdict), proven=True)
            self.after_answer.settle()
            self.journal.doubt(verdict.device)

    def _accused(self, device: DeviceId, cause: str) -> None:
        self.auditor.sampling.suspected(device)
        self.withdrawal.wrong(device, cause)
