"""Which models are served: loaded on first use, unloaded and loaded again, ready or not."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import structlog

from coordinator.answers import ModelStatus, ServedModel
from coordinator.devices.announcements import Announcements
from coordinator.devices.devices import Devices
from coordinator.library.loaded import Library, Loaded
from coordinator.library.naming import Names
from coordinator.plans.book import NO_WORKER
from coordinator.plans.controller import Controller
from protos.errors import NotFound, Unavailable

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ModelForgotten:
    """A model was replaced or unloaded. These programs (hashes) were of its plans."""

    model: str
    programs: frozenset[str]


class Served:
    """The models of one coordinator. Announces those that are forgotten."""

    def __init__(
        self,
        names: Names,
        library: Library,
        controller: Controller,
        devices: Devices,
        announcements: Announcements,
    ) -> None:
        self._names = names
        self._library = library
        self._controller = controller
        self._plans = controller.plans
        self._devices = devices
        self._announcements = announcements
        self._unloaded: set[str] = set()
        self._stamps: dict[str, tuple[int, int] | None] = {}

    async def get(self, model: str) -> ServedModel:
        """A model, loaded on first use.

        Raises:
            NotFound, BadRequest: no such model, it was unloaded, or it cannot be used.
        """
        if model in self._unloaded:
            raise NotFound(
                cause=f"the model {self._names.public(model)[0]} was unloaded",
                cure="Load it again: POST /v2/repository/models/NAME/load",
            )
        stamp = self._names.stamp(model)
        if self._stamps.setdefault(model, stamp) != stamp:
            log.info("model replaced", model=model)
            self._forget(model)
            self._stamps[model] = stamp
        return (await self._library.get(model)).served

    def is_loaded(self, model: str) -> bool:
        """Whether `get` would return without loading."""
        return model not in self._unloaded and model in self._library.loaded()

    async def load(self, model: str) -> None:
        """Loads a model, from its file as it is now, and makes it ready.

        Raises:
            NotFound, BadRequest, Unavailable, Infeasible: as `get` and `Coordinator.infer`.
        """
        self._forget(model, stays=True)
        self._unloaded.discard(model)
        await self._controller.current(model)

    def unload(self, model: str) -> None:
        """Unloads a model: requests to it are refused until `load`. Those in flight finish."""
        self._unloaded.add(model)
        self._forget(model)

    def let_go(self, model: str) -> bool:
        """Unloads a model until the next request to it, unless it is configured, in use, or has a
        plan that is held. Returns whether it was unloaded.
        """
        is_kept = model in self._names.configured or self._plans.held(model)
        if is_kept or self._controller.is_busy(model):
            return False
        self._forget(model)
        return True

    async def load_configured(self) -> None:
        """Makes every configured model ready; failures are logged."""
        for model in self._names.configured:
            if model in self._unloaded:
                continue
            try:
                await self._controller.current(model)
            except Unavailable:
                continue  # no worker yet: planned when the first one joins
            except Exception as error:
                log.error("model cannot be served", model=model, error=str(error))

    def readiness(self) -> tuple[bool, str]:
        """Whether every configured model could answer a request now; if not, why."""
        if not self._devices.plannable():
            return False, str(NO_WORKER)
        for model in self._names.configured:
            ready, reason = self.readiness_of(model)
            if not ready and model not in self._unloaded:
                return False, f"{model}: {reason}"
        return True, ""

    def readiness_of(self, model: str) -> tuple[bool, str]:
        """Whether this model could answer a request now; if not, why."""
        if model in self._unloaded:
            return False, "unloaded"
        if not self._devices.plannable():
            return False, str(NO_WORKER)
        state = self._plans.state(model)
        return state == "ready", "" if state == "ready" else state

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of all loaded models."""
        return self._library.weight_bytes

    def statuses(self, *, public: bool = False) -> list[ModelStatus]:
        """Every model that was requested or configured, by its source or its public name."""
        loaded = self._library.loaded()
        statuses = [
            self._status(model, loaded.get(model))
            for model in dict.fromkeys((*self._names.configured, *loaded))
        ]
        if public:
            return [replace(each, name=self._names.public(each.name)[0]) for each in statuses]
        return statuses

    def _forget(self, model: str, *, stays: bool = False) -> None:
        """Drops a model's plans, since it is replaced or unloaded. One that `stays` is loaded again
        at once, and its programs may still be of use.
        """
        self._library.forget(model)
        self._stamps.pop(model, None)
        programs = self._controller.forget(model)
        needless = frozenset() if stays else frozenset(programs)
        self._announcements.announce(ModelForgotten(model, needless))

    def _status(self, model: str, loaded: Loaded | None) -> ModelStatus:
        graph = self._plans.graph(model)
        served = loaded.served if loaded else None
        sidecar = served.sidecar if served else None
        return ModelStatus(
            name=model,
            ready=graph is not None,
            state=self._plans.state(model),
            task=sidecar.task if sidecar else "tensor",
            trained=served.trained if served else False,
            plan_version=graph.plan.version if graph else 0,
            held=self._plans.held(model),
            load=self._controller.regrouping.status(model, time.monotonic()),
            weight_bytes=loaded.weight_bytes if loaded else 0,
            precision=sidecar.precision if sidecar else "exact",
            assumed=served.assumed if served else {},
            pictures=served.sightings.pictures if served else 0,
            empty_pictures=served.sightings.empty if served else 0,
            not_finite_answers=served.sightings.not_finite if served else 0,
        )
