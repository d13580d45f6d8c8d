"""AOFL's testbed under two calibrations, and what every strategy takes on it.

Calibrations are cluster files of eight machines at 1 GHz, the host's worker among them. Other
clocks, bandwidths and counts are derived from them: whatever a core does takes 1/clock as long.

Times are told twice. `cost_s` is AOFL's own cost [Eq. 3 and 4]: all sends, the slowest tile, all
gathers, one after the other. `simulated_s` is the event simulator's: a device starts when its
tile has arrived and answers when it is done, while the host still serves others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from coordinator.costs.cluster import Cluster, Device, Link
from coordinator.costs.rates import RateCosts, flop_per_s
from coordinator.planning.planners.propose import propose
from coordinator.plans.named import strategy
from coordinator.tasks.plan import Plan
from imbrex.described import load_cluster
from models.catalogue import catalogue
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from protos.wire.facts import DeviceId

CALIBRATIONS = ("a", "b")
MEASURES = ("cost", "simulated")
_CLUSTERS = Path(__file__).parent / "clusters"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the terms of a calibration may mean; the defaults are what the figures are made with.

    `host_computes`: the first of N devices is the host's own worker. `ends`: a byte costs CPU at
    the device alone (1) or at the host too (2). `slow_weights`, `slow_bytes`: the cost of weights
    and of bytes grows at lower clocks, as computation does. `message_ms`: a transfer's fixed cost,
    beyond what the file says. `weights_1x1`: weights of 1x1 convolutions cost what others do.
    """

    host_computes: bool = True
    ends: int = 2
    slow_weights: bool = True
    slow_bytes: bool = True
    weights_1x1: bool = False
    message_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Setting:
    """N like devices: the host's worker and N - 1 more. Without `mbps`, at the file's own."""

    calibration: str
    devices: int
    ghz: float = 1.0
    mbps: float | None = None
    meaning: Meaning = Meaning()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a strategy takes; `single_s` is the best device alone."""

    plan: Plan
    cost_s: float
    simulated_s: float
    single_s: float

    def seconds(self, measure: str) -> float:
        """The time by one of `MEASURES`."""
        return {"cost": self.cost_s, "simulated": self.simulated_s}[measure]

    def speedup(self, measure: str) -> float:
        """Over one device, by one of `MEASURES`."""
        return self.single_s / self.seconds(measure)


@cache
def network(model: str) -> Network:
    """A network of the catalogue; its weights have shapes, and no values to hold in memory."""
    loaded = catalogue.load(model)
    graph = load_graph(loaded.proto, loaded.name)
    light = {k: np.broadcast_to(v.dtype.type(0), v.shape) for k, v in graph.constants.items()}
    return divide(replace(graph, constants=light))


@cache
def outcome(model: str, name: str, setting: Setting) -> Outcome:
    """A strategy's plan for a model on like devices, checked, with its times."""
    return planned(model, name, like(setting))


def planned(model: str, name: str, cluster: Cluster) -> Outcome:
    """A strategy's plan for a model on any cluster, checked, with its times."""
    made: list[Plan] = []

    def planner(network: Network, cluster: Cluster) -> Plan:
        made.append(strategy(name)(network, cluster))
        return made[0]

    plan = propose(planner, network(model), cluster)
    return Outcome(
        made[0], made[0].predicted_latency_s, plan.predicted_latency_s, plan.single_device_latency_s
    )


@lru_cache(maxsize=8)
def like(setting: Setting) -> Cluster:
    """The cluster of a setting; the same object while it is in use, so that tables are kept."""
    base = calibrated(setting.calibration)
    kept = base.devices[: setting.devices]
    if not setting.meaning.host_computes:
        kept = tuple(
            replace(base.devices[1], id=DeviceId(f"pi-{k}")) for k in range(setting.devices)
        )
    devices = tuple(_clocked(device, setting.ghz, setting.meaning) for device in kept)
    cluster = replace(base, devices=devices)
    return _connected(cluster, setting.mbps, setting.meaning.message_ms)


def unlike(calibration: str, ghz: Sequence[float], cores: Mapping[int, int]) -> Cluster:
    """Devices of these clocks around a host that only sends and merges; `cores` by position,
    where there is more than one.
    """
    base = calibrated(calibration)
    devices = []
    for k, clock in enumerate(ghz):
        name = f"pi-{k + 1}"
        one = replace(base.devices[1], id=DeviceId(name), name=name)
        device = _clocked(one, clock, Meaning())
        devices.append(_faster(device, cores.get(k, 1)))
    return replace(base, devices=tuple(devices))


@cache
def calibrated(calibration: str) -> Cluster:
    """The eight machines of a calibration at 1 GHz."""
    return load_cluster(_CLUSTERS / f"aofl-{calibration}.toml")


def _connected(cluster: Cluster, mbps: float | None, message_ms: float) -> Cluster:
    """Links at another bandwidth than the file's, and with a fixed cost more per transfer."""
    assert cluster.uplink is not None, "the testbed is a star"

    def changed(link: Link) -> Link:
        rate = link.bytes_per_s if mbps is None else mbps * 1e6 / 8
        return replace(link, bytes_per_s=rate, message_s=link.message_s + message_ms * 1e-3)

    devices = tuple(
        device if device.host else replace(device, link=changed(device.link))
        for device in cluster.devices
    )
    return replace(cluster, devices=devices, uplink=changed(cluster.uplink))


def _clocked(device: Device, ghz: float, meaning: Meaning) -> Device:
    slow_weights = ghz if meaning.slow_weights else 1.0
    slow_bytes = ghz if meaning.slow_bytes else 1.0
    slower = meaning.ends / 2 / slow_bytes
    near, far = (
        replace(end, byte_s=end.byte_s * slower) for end in (device.link.near, device.link.far)
    )
    rates = _rates(device)
    costs = replace(
        rates,
        gflops=rates.gflops * ghz,
        weight_ns=rates.weight_ns / slow_weights,
        run_s=rates.run_s / ghz,
        weight_1x1=1.0 if meaning.weights_1x1 else rates.weight_1x1,
    )
    return _computing(replace(device, link=replace(device.link, near=near, far=far)), costs)


def _faster(device: Device, cores: int) -> Device:
    rates = _rates(device)
    faster = replace(rates, gflops=rates.gflops * cores, weight_ns=rates.weight_ns / cores)
    return _computing(device, faster)


def _rates(device: Device) -> RateCosts:
    assert isinstance(device.costs, RateCosts), "calibrations are rates"
    return device.costs


def _computing(device: Device, costs: RateCosts) -> Device:
    return replace(device, costs=costs, speed=flop_per_s(costs))
