"""The doctor of a running coordinator: examines its cluster, and judges the plan for Frigate."""

import asyncio

from coordinator.answers import Diagnosis
from coordinator.audit.examiner import Examiner
from coordinator.devices.devices import Devices
from coordinator.devices.statuses import status_of, statuses
from coordinator.doctor.examine import diagnose, examine
from coordinator.doctor.findings import of_heads, of_models, of_no_exam, of_quarantine, of_state
from coordinator.doctor.frigate import InTime, in_time
from coordinator.library.sharing import Sharing
from coordinator.plans.plans import Plans
from coordinator.plans.served_models import ServedModels
from coordinator.settings import CoordinatorSettings
from coordinator.trust.cluster_state import ClusterState


class Doctor:
    """Examines devices, network and plans in force of one coordinator."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        state: ClusterState,
        sharing: Sharing,
        devices: Devices,
        examiner: Examiner,
        plans: Plans,
        served: ServedModels,
    ) -> None:
        self._settings = settings
        self._state = state
        self._sharing = sharing
        self._devices = devices
        self._examiner = examiner
        self._plans = plans
        self._served = served
        self._examining: asyncio.Task[Diagnosis] | None = None
        self._frigates = ""

    async def examine(self) -> Diagnosis:
        """Examines the devices and the network between them. Every device also computes some tasks
        of the plans in force. Whoever asks meanwhile gets the result of the same examination.
        """
        if self._examining is None or self._examining.done():
            self._examining = asyncio.create_task(self._examine())
        return await asyncio.shield(self._examining)

    async def _examine(self) -> Diagnosis:
        devices, sharing = self._devices, self._sharing
        silent = await self._examiner.examine(devices.plannable(), self._plans.book.in_force())
        known_devices = statuses(devices)
        known = [of_quarantine(status) for status in known_devices if status.state == "quarantined"]
        known += [
            of_no_exam(status_of(device, known_devices), why) for device, why in silent.items()
        ]
        known += [*of_state(self._state), *of_models(sharing.awaited(), sharing.problems)]
        known += of_heads(self._served.statuses(public=True))
        examined = await examine(devices.pool, self._settings, devices.gflops)
        return diagnose(examined, known, self.frigate)

    async def frigate_in_time(self, model: str) -> InTime:
        """Whether the detectors of Frigate are answered in time with its model, which
        `frigate` judges from now on.

        Raises:
            Unavailable: no worker is ready.
        """
        self._frigates = model
        plan, _ = await self._plans.current(model)
        return in_time(plan.predicted_latency_s, len(self._settings.frigate_zmq))

    @property
    def frigate(self) -> InTime | None:
        """Whether Frigate's detectors are answered in time by the plan in force; None before its
        model is loaded, and while there is no plan for it.
        """
        graph = self._plans.book.graph(self._frigates)
        if graph is None:
            return None
        return in_time(graph.plan.predicted_latency_s, len(self._settings.frigate_zmq))
