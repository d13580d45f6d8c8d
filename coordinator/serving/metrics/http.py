"""`/metrics` as a plain route, since a mounted application would redirect Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector

from coordinator.serving.common.access import asks
from coordinator.serving.metrics.counts import Counts
from coordinator.serving.metrics.gauges import Gauges

if TYPE_CHECKING:
    from coordinator.service import Coordinator

router = APIRouter(include_in_schema=False)


def registry_of(coordinator: Coordinator) -> CollectorRegistry:
    """A registry for one coordinator, which counts from now on."""
    registry = CollectorRegistry()
    counts = Counts(registry, coordinator)
    coordinator.journal.listen(counts.count)
    registry.register(Gauges(coordinator))
    ProcessCollector(namespace="imbrex", registry=registry)
    return registry


@router.get("/metrics")
@asks
async def metrics(request: Request) -> Response:
    """All metrics, in the text format that the client accepts."""
    request.app.state.coordinator.settle()
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(request.app.state.metrics), headers={"Content-Type": kind})
