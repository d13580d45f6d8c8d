"""The coordinator's HTTP application, composed of one package per interface."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI

from coordinator.serving.common.access import Access, HostNames, guard, names_in, rule_of
from coordinator.serving.common.body import Intake
from coordinator.serving.common.errors import add_error_handlers
from coordinator.serving.common.interface import OptionalInterface
from coordinator.serving.common.keys import Keys
from coordinator.serving.common.middleware import HttpConventions
from coordinator.serving.common.repeats import Repeats
from coordinator.serving.metrics import http as metrics
from coordinator.serving.v1 import devices, health, infer, models, plans
from protos.rooms import imported, is_installed

if TYPE_CHECKING:
    from coordinator.service import Coordinator


_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})

ROOMS = (infer, models, plans, devices, health, metrics)
# Optional interfaces, and the setting that asks for one.
OPTIONAL: Mapping[str, str] = {
    "coordinator.serving.oip.interface:OpenInference": "grpc_port",
    "coordinator.serving.deepstack.http:DeepStack": "",
    "coordinator.serving.frigate.server:FrigateServer": "frigate_zmq",
    "coordinator.serving.page.http:Page": "",
}


def create_app(coordinator: Coordinator) -> FastAPI:
    """The application of one coordinator; the caller starts and stops the coordinator, and what is
    in `state.interfaces`.

    Raises:
        NotFound: an interface that the settings ask for is not installed.
    """
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
    app.state.repeats = Repeats()
    interfaces: list[OptionalInterface] = [
        imported(name)(app, coordinator)
        for name, setting in OPTIONAL.items()
        if is_installed(name) or getattr(settings, setting, None)
    ]
    app.state.interfaces = interfaces
    add_error_handlers(
        app, {path: interface.error for interface in interfaces for path in interface.prefixes}
    )
    app.add_middleware(
        Intake,
        max_body_bytes=settings.max_body_bytes,
        min_body_bytes_per_s=settings.min_body_bytes_per_s,
        answered=coordinator.settle,
    )
    app.add_middleware(
        HttpConventions, kept=frozenset().union(*(interface.with_slash for interface in interfaces))
    )
    routers = [room.router for room in ROOMS] + [interface.router for interface in interfaces]
    app.state.routes = [route for router in routers for route in router.routes]
    for router in routers:
        for route in router.routes:
            rule = rule_of(getattr(route, "endpoint", None))
            assert rule, f"{route} declares no access rule"
            has_body = not _WITHOUT_BODY.issuperset(getattr(route, "methods", ()))
            assert rule.body or not has_body, f"{route} does not declare its body"
        app.include_router(router)
    return app
