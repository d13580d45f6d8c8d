"""`/metrics` as a plain route, since a mounted application would redirect Prometheus."""

import math
import time
from collections.abc import Iterator

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from coordinator.answers import DeviceStatus, ModelStatus
from coordinator.plans.plans import TookOver
from coordinator.requests.journal import RequestRecord
from coordinator.service import Coordinator
from coordinator.serving.common.access import asks
from protos.wire.facts import ONNXRUNTIME

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

DEVICE = ("device", "name")


class _Gauges(Collector):
    """What is read when Prometheus scrapes: queue, devices, plans."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Every gauge with its present value."""
        yield GaugeMetricFamily(
            "imbrex_queue_depth", "Requests waiting.", self._coordinator.admission.waiting
        )
        yield GaugeMetricFamily(
            "imbrex_in_flight", "Requests being computed.", self._coordinator.admission.running
        )
        yield GaugeMetricFamily(
            "imbrex_models_weight_bytes",
            "Bytes of the weights of all loaded models.",
            self._coordinator.library.weight_bytes,
        )
        yield GaugeMetricFamily(
            "imbrex_models_max_bytes",
            "Bytes of weights beyond which idle models are unloaded.",
            self._coordinator.settings.max_models_bytes,
        )
        departures = CounterMetricFamily(
            "imbrex_device_departures",
            "Connections to devices that ended by an error, by its code.",
            labels=("reason",),
        )
        for reason, count in self._coordinator.devices.pool.losses.items():
            departures.add_metric((reason,), count)
        yield departures
        yield from self._models()
        yield from self._devices()
        yield self._certificates()

    def _certificates(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "imbrex_device_certificate_end_timestamp_seconds",
            "When the certificate of a member ends.",
            labels=DEVICE,
        )
        for member in self._coordinator.devices.members():
            family.add_metric((member.id, member.name), member.expires.timestamp())
        return family

    def _models(self) -> Iterator[GaugeMetricFamily]:
        version = GaugeMetricFamily(
            "imbrex_plan_version", "The plan in force; 0: none.", labels=("model",)
        )
        ready = GaugeMetricFamily("imbrex_model_ready", "Whether it is served.", labels=("model",))
        arrivals = GaugeMetricFamily(
            "imbrex_arrivals_per_second",
            "Rate at which requests arrived recently.",
            labels=("model",),
        )
        capacity = GaugeMetricFamily(
            "imbrex_capacity_per_second",
            "Predicted rate at which the devices can answer requests.",
            labels=("model",),
        )
        # Versions and sizes of a model, of which clients choose any number, have one name.
        found: dict[str, list[ModelStatus]] = {}
        for status in self._coordinator.served.statuses():
            found.setdefault(self._coordinator.names.label(status.name), []).append(status)
        for model, statuses in found.items():
            version.add_metric((model,), max(status.plan_version for status in statuses))
            ready.add_metric((model,), float(all(status.ready for status in statuses)))
            arrivals.add_metric((model,), sum(status.load.arrivals_per_s for status in statuses))
            rates = [
                status.load.capacity_per_s for status in statuses if status.load.capacity_per_s
            ]
            if rates:
                capacity.add_metric((model,), min(rates))
        yield from (version, ready, arrivals, capacity)

    def _devices(self) -> Iterator[GaugeMetricFamily]:
        def family(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"imbrex_device_{name}", text, labels=DEVICE)

        up = family("ready", "Whether the device can be used.")
        seen = family("last_seen_timestamp_seconds", "When it was last heard of.")
        ratio = family("measured_ratio", "Observed over predicted seconds of its tasks.")
        others = family("others_share", "Share of its time that other coordinators use.")
        rate = family("flop_per_second", "Its rate on a typical convolution.")
        link = family("link_bytes_per_second", "The measured rate of its link.")
        celsius = family("temperature_celsius", "Its temperature, where it says.")
        throttled = family("throttled", "Whether heat or power holds it back now.")
        drained = family("drained", "Whether it was drained by a person.")
        quarantined = family("quarantined", "Whether it is left out for wrong results.")
        refused = family("refused_results", "Messages from it that could not be a task's result.")
        audited = family("audited_tasks", "Its tasks that were computed again and compared.")
        wrong = family("wrong_tasks", "Audited tasks that it had computed wrongly.")
        engine = GaugeMetricFamily(
            "imbrex_device_engine_speedup",
            "How many times as fast as onnxruntime its engine was; NaN: not measured.",
            labels=(*DEVICE, "engine"),
        )
        programs = GaugeMetricFamily(
            "imbrex_device_engine_programs",
            "Programs that an engine computes; of onnxruntime, those that no other takes or gains.",
            labels=(*DEVICE, "engine"),
        )
        now = time.time()
        for status in self._coordinator.device_statuses():
            if status.is_alias:
                continue
            labels = (status.id or status.address, status.name)
            ready = status.state == "ready"
            up.add_metric(labels, float(ready))
            drained.add_metric(labels, float(status.withheld in ("draining", "drained")))
            quarantined.add_metric(labels, float(status.withheld == "quarantined"))
            refused.add_metric(labels, status.refused_results)
            audited.add_metric(labels, status.audited_tasks)
            wrong.add_metric(labels, status.wrong_tasks)
            others.add_metric(labels, status.others_share)
            if math.isfinite(status.last_seen_s):
                seen.add_metric(labels, now - status.last_seen_s)
            if status.gflops:  # also of a device that is away: what it computed at last
                rate.add_metric(labels, status.gflops * 1e9)
                link.add_metric(labels, status.mbps * 125e3)
            if ready:
                for name, count, speedup in _engines(status):
                    engine.add_metric((*labels, name), speedup)
                    if count is not None:
                        programs.add_metric((*labels, name), count)
                ratio.add_metric(labels, status.correction)
                throttled.add_metric(labels, float(status.throttled))
                if status.celsius:
                    celsius.add_metric(labels, status.celsius)
        yield from (up, seen, drained, quarantined, refused, audited, wrong, others)
        yield from (ratio, rate, link, celsius, throttled, engine, programs)


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

    def count(self, entry: RequestRecord | TookOver) -> None:
        """Counts one entry."""
        match entry:
            case RequestRecord():
                self._ended(entry)
            case TookOver(model, causes=causes):
                for kind in {cause_kind(cause) for cause in causes}:
                    self._replans.labels(self._coordinator.names.label(model), kind).inc()

    def _ended(self, ended: RequestRecord) -> None:
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
            labels = (task.device, self._name(task.device))
            self._tiles.labels(*labels).observe(max(0.0, task.stop_s - task.start_s))
            self._bytes.labels(*labels, "sent").inc(task.sent_bytes)
            self._bytes.labels(*labels, "received").inc(task.received_bytes)

    def _name(self, device: str) -> str:
        if device not in self._known:
            if len(self._known) >= MOST_DEVICES:
                self._known.clear()
            self._known |= {
                status.id: status.name
                for status in self._coordinator.device_statuses()
                if status.id
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
    registry.register(_Gauges(coordinator))
    ProcessCollector(namespace="imbrex", registry=registry)
    return registry


@router.get("/metrics")
@asks
async def metrics(request: Request) -> Response:
    """All metrics, in the text format that the client accepts."""
    request.app.state.coordinator.settle()
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(request.app.state.metrics), headers={"Content-Type": kind})


def _engines(status: DeviceStatus) -> Iterator[tuple[str, int | None, float]]:
    """The engines of a device, each with the programs that it computes (None: not told) and its
    gain; that of onnxruntime itself is 1.
    """
    shares, kept = status.facts.get("engines"), status.facts.get("kept")
    if isinstance(shares, tuple) and shares:
        for share in shares:
            yield str(share["name"]), int(share["programs"]), float(share["speedup"])
        if isinstance(kept, tuple):
            yield ONNXRUNTIME, sum(int(entry["programs"]) for entry in kept), 1.0
    else:
        name, speedup = str(status.facts.get("engine", "")), status.facts.get("speedup")
        unmeasured = 1.0 if name == ONNXRUNTIME else math.nan
        yield name, None, speedup if isinstance(speedup, float) and speedup else unmeasured
