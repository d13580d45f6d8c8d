"""Metrics that are read when Prometheus scrapes: queue, devices, plans."""

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from coordinator.answers import DeviceStatus, ModelStatus
from protos.wire.facts import ONNXRUNTIME

if TYPE_CHECKING:
    from coordinator.service import Coordinator

DEVICE = ("device", "name")


class Gauges(Collector):
    """Reads the coordinator at each scrape."""

    def __init__(self, coordinator: "Coordinator") -> None:
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
            version.add_metric((model,), max(each.plan_version for each in statuses))
            ready.add_metric((model,), float(all(each.ready for each in statuses)))
            arrivals.add_metric((model,), sum(each.load.arrivals_per_s for each in statuses))
            rates = [each.load.capacity_per_s for each in statuses if each.load.capacity_per_s]
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
                _add_measured(status, labels, (ratio, celsius, throttled))
        yield from (up, seen, drained, quarantined, refused, audited, wrong, others)
        yield from (ratio, rate, link, celsius, throttled, engine, programs)


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


def _add_measured(
    status: DeviceStatus, labels: tuple[str, str], families: tuple[GaugeMetricFamily, ...]
) -> None:
    ratio, celsius, throttled = families
    ratio.add_metric(labels, status.correction)
    if status.celsius:
        celsius.add_metric(labels, status.celsius)
    throttled.add_metric(labels, float(status.throttled))
