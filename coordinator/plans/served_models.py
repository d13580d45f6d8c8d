"""Which models are served: loaded on first use, unloaded and loaded again, ready or not."""

from __future__ import annotations

import time
from dataclasses import replace

import structlog

from coordinator.answers import ModelStatus
from coordinator.devices.devices import Devices
from coordinator.library.loaded import Library, Loaded
from coordinator.plans.book import NO_WORKER
from coordinator.plans.plans import Plans
from protos.errors import Unavailable

log = structlog.get_logger(__name__)


class ServedModels:
    """The models of one coordinator as clients see them: ready or not, with their load."""

    def __init__(self, library: Library, plans: Plans, devices: Devices) -> None:
        self._library = library
        self._plans = plans
        self._devices = devices

    async def load(self, model: str) -> None:
        """Loads a model, from its file as it is now, and makes it ready.

        Raises:
            NotFound, BadRequest, Unavailable, Infeasible: as `Library.get` and `Coordinator.infer`.
        """
        self._library.reload(model)
        await self._library.get(model)
        await self._plans.prepared(model)

    async def load_configured(self) -> None:
        """Makes every configured model ready; failures are logged."""
        for model in self._library.names.configured:
            if self._library.is_unloaded(model):
                continue
            try:
                await self._plans.prepared(model)
            except Unavailable:
                continue  # no worker yet: planned when the first one joins
            except Exception as error:
                log.error("model cannot be served", model=model, error=str(error))

    def readiness(self) -> tuple[bool, str]:
        """Whether every configured model could answer a request now; if not, why."""
        if not self._devices.plannable():
            return False, str(NO_WORKER)
        for model in self._library.names.configured:
            ready, reason = self.readiness_of(model)
            if not ready and not self._library.is_unloaded(model):
                return False, f"{model}: {reason}"
        return True, ""

    def readiness_of(self, model: str) -> tuple[bool, str]:
        """Whether this model could answer a request now; if not, why."""
        if self._library.is_unloaded(model):
            return False, "unloaded"
        if not self._devices.plannable():
            return False, str(NO_WORKER)
        state = self._plans.book.state(model)
        return state == "ready", "" if state == "ready" else state

    def statuses(self, *, public: bool = False) -> list[ModelStatus]:
        """Every model that was requested or configured, by its source or its public name."""
        loaded = self._library.loaded()
        statuses = [
            self._status(model, loaded.get(model))
            for model in dict.fromkeys((*self._library.names.configured, *loaded))
        ]
        if public:
            return [
                replace(status, name=self._library.names.public(status.name)[0])
                for status in statuses
            ]
        return statuses

    def _status(self, model: str, loaded: Loaded | None) -> ModelStatus:
        graph = self._plans.book.graph(model)
        served = loaded.served if loaded else None
        sidecar = served.sidecar if served else None
        return ModelStatus(
            name=model,
            ready=graph is not None,
            state=self._plans.book.state(model),
            task=sidecar.task if sidecar else "tensor",
            trained=served.trained if served else False,
            plan_version=graph.plan.version if graph else 0,
            held=self._plans.book.held(model),
            load=self._plans.groups.status(model, time.monotonic()),
            weight_bytes=loaded.weight_bytes if loaded else 0,
            precision=sidecar.precision if sidecar else "exact",
            assumed=served.assumed if served else {},
            pictures=served.sightings.pictures if served else 0,
            empty_pictures=served.sightings.empty if served else 0,
            not_finite_answers=served.sightings.not_finite if served else 0,
        )
