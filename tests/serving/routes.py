"""Every route of the application, walked by tests."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi.routing import APIRoute

from coordinator.serving.app import OPTIONAL, ROOMS
from coordinator.serving.common.access import AccessRule, rule_of
from protos.rooms import imported, is_installed

# What answers without a key.
OPEN = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/v1/status/ping"})
READING = frozenset({"GET", "HEAD", "OPTIONS"})


def every_route() -> Iterator[tuple[str, str]]:
    """(method, path)"""
    for method, path, _ in every_rule():
        yield method, path


def every_rule() -> Iterator[tuple[str, str, AccessRule | None]]:
    """(method, path, what its function declares)"""
    for room in (*ROOMS, *map(imported, filter(is_installed, OPTIONAL))):
        for route in room.router.routes:
            assert isinstance(route, APIRoute), route
            for method in route.methods:
                yield method, route.path, rule_of(route.endpoint)


def filled(path: str, **values: str) -> str:
    """A path with its parameters written in, `{name:path}` too; those not given are `x`."""
    parts = []
    for part in path.split("/"):
        if part.startswith("{"):
            name = part.strip("{}").partition(":")[0]
            parts.append(values.get(name, "x"))
        else:
            parts.append(part)
    return "/".join(parts)
