"""The plans of the models that are served, as clients ask for them, send them and release them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from coordinator.answers import PlanNow
from coordinator.devices.devices import Devices
from coordinator.library.naming import Names
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.choice import IN_FORCE, Choice
from coordinator.plans.controller import Controller
from coordinator.plans.sent_plan import adopt, plan_id
from coordinator.plans.served import Served
from coordinator.tasks.plan import Plan
from coordinator.tasks.task_graph import TaskGraph
from models.cut.units import Network
from protos.errors import NotFound, Unavailable


class ServedPlans:
    """The plans of one coordinator, each by the source of its model."""

    def __init__(
        self, names: Names, served: Served, controller: Controller, devices: Devices
    ) -> None:
        self._names = names
        self._served = served
        self._controller = controller
        self._plans = controller.plans
        self._devices = devices

    def in_force(self) -> list[TaskGraph]:
        """The plans in force of all models."""
        return self._plans.in_force()

    def graph(self, model: str) -> TaskGraph | None:
        """The plan in force of a model, if there is one."""
        return self._plans.graph(model)

    async def current(self, model: str, choice: Choice = IN_FORCE) -> tuple[Plan, Network]:
        """The plan in force for a model, or the chosen one, made if necessary, with the predictions
        that it was made with.

        Raises:
            NotFound: no such strategy, or no such plan was sent.
            Unavailable: no worker is ready.
        """
        network = (await self._served.get(model)).network
        graph = await self._controller.current(model, choice)
        return replace(graph.plan, made_for=self._plans.made_for(model, choice)), network

    async def made(self, model: str, choice: Choice = IN_FORCE) -> tuple[Plan, Network]:
        """As `current`, but only if the plan exists: nothing is loaded, planned or sent.

        Raises:
            NotFound: there is no such plan now.
        """
        self._made(model, choice)
        return await self.current(model, choice)

    async def now(self, model: str, choice: Choice = IN_FORCE) -> PlanNow:
        """What an existing plan would be predicted to take at the present speeds of devices and
        links, and as its own tasks ran.

        Raises:
            NotFound: there is no such plan now.
            Unavailable: one of its devices is away.
        """
        graph = self._made(model, choice)
        network = (await self._served.get(model)).network
        plan, cluster = graph.plan, self._devices.cluster(graph)
        gone = set(plan.devices) - {device.id for device in cluster.devices}
        if gone:
            raise Unavailable(
                cause=f"plan {plan.version} needs {', '.join(sorted(gone))}, which is away",
                cure="Wait until it is back, or for the next plan",
            )
        simulation = await asyncio.to_thread(simulate, plan, network, cluster)
        name = self._names.public(model)[0]
        return PlanNow(name, plan.version, plan.predicted_latency_s, simulation.latency_s)

    def _made(self, model: str, choice: Choice) -> TaskGraph:
        graph = self._plans.graph(model, choice)
        if graph is None or not self._served.is_loaded(model):
            name = self._names.public(model)[0]
            query = "" if choice == IN_FORCE else " with the same query"
            raise NotFound(
                cause=f"{name} has no such plan now",
                cure=f"Send it (again): POST /v1/plans/{name}"
                if choice.plan
                else f"Request it: POST /v1/models/{name}/plan{query}",
            )
        return graph

    async def give(self, model: str, text: bytes, *, hold: bool) -> tuple[str, Plan, Network]:
        """Accepts a plan as JSON and prepares it, for requests that choose it by the returned id,
        or (`hold`) puts it in force until `release`.

        Raises:
            BadRequest, NotFound, IllegalPlan: it is not a plan, or not one for these devices.
        """
        network = (await self._served.get(model)).network
        plan = await asyncio.to_thread(adopt, text, network, self._devices.cluster())
        put = self._controller.hold if hold else self._controller.keep
        return plan_id(plan), (await put(model, plan)).plan, network

    async def release(self, model: str) -> None:
        """Returns to automatic planning for a model.

        Raises:
            NotFound: no plan is held for it.
        """
        if not self._plans.held(model):
            raise NotFound(
                cause=f"no plan is held for {self._names.public(model)[0]}",
                cure="Nothing to do: imbrex plans for this model by itself",
            )
        self._controller.release(model)
