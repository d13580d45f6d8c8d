"""`/metrics` as a plain route, since a mounted application would redirect Prometheus."""

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector

from coordinator.plans.plans import TookOver
from coordinator.requests.journal import Ended
from coordinator.service import Coordinator
from coordinator.serving.common.access import asks
from coordinator.serving.metrics.gauges import Gauges
from coordinator.tasks.timeline import TaskTimes

# From a small network on a fast machine to a large one on a single Pi.
SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0, 10.0, 20.0, 60.0)
PHASES = {
    "queue": "Waiting for its turn.",
    "scatter": "Only inputs were on their way to devices.",
    "compute": "At least one device computed.",
    "gather": "Only outputs were on their way back.",
}
# Devices whose names are cached.
MOST_DEVICES = 256
router = APIRouter(include_in_schema=False)


class Counts:
    """Counts the journal's entries. Labels are names from the operator, codes of imbrex, and
    devices: never text from a client.
    """

    def __init__(self, registry: CollectorRegistry, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._known: dict[str, str] = {}
        self._requests = Counter(
            "imbrex_requests",
            "Requests that ended, by outcome: ok, or the error's code.",
            ["model", "outcome"],
            registry=registry,
        )
        self._seconds = _histogram(
            registry, "imbrex_request_seconds", "From arrival to answer.", "model"
        )
        self._phases = {
            phase: _histogram(registry, f"imbrex_{phase}_seconds", text, "model")
            for phase, text in PHASES.items()
        }
        self._retried = Counter(
            "imbrex_retried_tasks", "Tasks that ran again elsewhere.", ["model"], registry=registry
        )
        self._tiles = _histogram(
            registry, "imbrex_tile_seconds", "A device computing one task.", "device", "name"
        )
        self._bytes = Counter(
            "imbrex_device_bytes",
            "Tensors between coordinator and device.",
            ["device", "name", "direction"],
            registry=registry,
        )
        self._replans = Counter(
            "imbrex_replans",
            "Plans that took over, by cause.",
            ["model", "cause"],
            registry=registry,
        )

    def count(self, entry: Ended | TookOver) -> None:
        """Counts one entry."""
        match entry:
            case Ended():
                self._ended(entry)
            case TookOver(model, causes=causes):
                for kind in {cause_kind(cause) for cause in causes}:
                    self._replans.labels(self._coordinator.names.label(model), kind).inc()

    def _ended(self, ended: Ended) -> None:
        model = self._coordinator.names.label(ended.model)
        self._requests.labels(model, ended.outcome).inc()
        if ended.answer is None:
            return
        self._seconds.labels(model).observe(ended.ended_s - ended.arrived_s)
        timing = ended.answer.timing
        spent = (timing.queue_s, timing.scatter_s, timing.compute_s, timing.gather_s)
        for histogram, seconds in zip(self._phases.values(), spent, strict=True):
            histogram.labels(model).observe(seconds)
        self._retried.labels(model).inc(ended.answer.retried_tasks)
        for task in ended.tasks:
            self._task(task)

    def _task(self, task: TaskTimes) -> None:
        labels = (task.device, self._name(task.device))
        self._tiles.labels(*labels).observe(max(0.0, task.stop_s - task.start_s))
        self._bytes.labels(*labels, "sent").inc(task.sent_bytes)
        self._bytes.labels(*labels, "received").inc(task.received_bytes)

    def _name(self, device: str) -> str:
        if device not in self._known:
            if len(self._known) >= MOST_DEVICES:
                self._known.clear()
            self._known |= {
                each.id: each.name for each in self._coordinator.device_statuses() if each.id
            }
        return self._known.get(device, device)


def cause_kind(cause: str) -> str:
    """A plan's cause without the devices in it."""
    if "measured" in cause:
        return "measured"
    if cause in ("first use", "asked for", "period", "released"):
        return cause.replace(" ", "_")
    return "devices"


def _histogram(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Histogram:
    return Histogram(name, text, labels, registry=registry, buckets=SECONDS)


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
