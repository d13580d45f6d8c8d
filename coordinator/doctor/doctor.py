"""The doctor of a running coordinator: examines its cluster, and judges the plan for Frigate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

from coordinator.answers import DeviceStatus, Diagnosis, ModelStatus
from coordinator.devices.statuses import status_of
from coordinator.doctor.examine import diagnose
from coordinator.doctor.findings import of_heads, of_no_exam, of_quarantine
from coordinator.doctor.frigate import InTime, in_time
from coordinator.plans.served_plans import ServedPlans
from coordinator.runtime.runtime import Runtime


class Doctor:
    """Examines devices, network and plans in force. `devices` gives the status of every device."""

    def __init__(
        self, runtime: Runtime, plans: ServedPlans, devices: Callable[[], list[DeviceStatus]]
    ) -> None:
        self._runtime = runtime
        self._live = runtime.live
        self._in_force = runtime.controller.plans
        self._plans = plans
        self._devices = devices
        self._detectors = len(runtime.settings.frigate_zmq)
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
        in_use = self._live.present()
        silent = await self._live.examiner.examine(in_use, self._in_force.in_force())
        devices = self._devices()
        known = [of_quarantine(each) for each in devices if each.state == "quarantined"]
        known += [of_no_exam(status_of(each, devices), why) for each, why in silent.items()]
        known += self._runtime.problems()
        known += of_heads(self._models())
        return diagnose(await self._live.examine(), known, self.frigate)

    def _models(self) -> Iterator[ModelStatus]:
        """The status of every model, by its public name."""
        for each in self._runtime.served.statuses():
            yield replace(each, name=self._runtime.names.public(each.name)[0])

    async def frigate_in_time(self, model: str) -> InTime:
        """Whether the detectors of Frigate are answered in time with its model, which
        `frigate` judges from now on.

        Raises:
            Unavailable: no worker is ready.
        """
        self._frigates = model
        plan, _ = await self._plans.current(model)
        return in_time(plan.predicted_latency_s, self._detectors)

    @property
    def frigate(self) -> InTime | None:
        """Whether Frigate's detectors are answered in time by the plan in force; None before its
        model is loaded, and while there is no plan for it.
        """
        graph = self._in_force.graph(self._frigates)
        if graph is None:
            return None
        return in_time(graph.plan.predicted_latency_s, self._detectors)
