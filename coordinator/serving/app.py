"""The coordinator's HTTP application, composed of one package per interface."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI

from coordinator.serving.common.access import Access, guard, rule_of
from coordinator.serving.common.body import Intake
from coordinator.serving.common.errors import add_error_handlers
from coordinator.serving.common.headers import SecurityHeaders
from coordinator.serving.common.keys import Keys
from coordinator.serving.common.names import DEEPSTACK
from coordinator.serving.common.origins import HostNames, names_in
from coordinator.serving.common.repeats import Repeats
from coordinator.serving.common.targets import Targets
from coordinator.serving.deepstack import answers as deepstack_answers
from coordinator.serving.deepstack import http as deepstack
from coordinator.serving.metrics import http as metrics
from coordinator.serving.oip import http as oip
from coordinator.serving.oip.service import InferenceService
from coordinator.serving.page import http as page
from coordinator.serving.page.hub import Hub
from coordinator.serving.v1 import devices, health, infer, models, plans

if TYPE_CHECKING:
    from coordinator.service import Coordinator


_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})

# These routers hold all routes.
ROOMS = (infer, models, plans, devices, health, metrics, oip, deepstack, page)


def create_app(coordinator: Coordinator) -> FastAPI:
    """The application of one coordinator; the caller starts and stops the coordinator."""
    app = FastAPI(
        title="imbrex",
        version=metadata.version("imbrex"),
        summary="One CNN inference across the devices of a home.",
        docs_url=None,  # the framework's page runs scripts of other sites with the reader's login
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(guard)],
    )
    app.state.coordinator = coordinator
    settings = coordinator.settings
    app.state.access = Access(Keys(coordinator.state), settings.rate_per_s)
    named = (*settings.host_names, *settings.tls_names, *names_in(settings.tls_cert))
    app.state.host_names = HostNames((*named, settings.host), settings.host_names)
    app.state.metrics = metrics.registry_of(coordinator)
    app.state.page = Hub(coordinator)
    app.state.oip = InferenceService(coordinator)
    app.state.repeats = Repeats()
    shapes = dict.fromkeys(DEEPSTACK, deepstack_answers.shape) | {oip.PREFIX: oip.shape}
    add_error_handlers(app, shapes)
    app.add_middleware(
        Intake,
        max_body_bytes=settings.max_body_bytes,
        min_body_bytes_per_s=settings.min_body_bytes_per_s,
        answered=coordinator.settle,
    )
    app.add_middleware(SecurityHeaders)
    app.add_middleware(Targets, kept=page.WITH_SLASH)
    app.state.routes = [route for room in ROOMS for route in room.router.routes]
    for room in ROOMS:
        for route in room.router.routes:
            rule = rule_of(getattr(route, "endpoint", None))
            assert rule, f"{route} declares no access rule"
            has_body = not _WITHOUT_BODY.issuperset(getattr(route, "methods", ()))
            assert rule.body or not has_body, f"{route} does not declare its body"
        app.include_router(room.router)
    return app
