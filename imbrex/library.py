"""Planning, prediction and checks on this machine, without a coordinator, as on the command line.

A model is a name (`imbrex models list`) or the path of an `.onnx` file; a cluster is described by a
file (`imbrex status --save`), or created in Python.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coordinator.costs.cluster import Cluster, Planner, fastest
from coordinator.planning.plan_json import PlanFile, plan_json
from coordinator.planning.planners.aofl import aofl
from coordinator.planning.planners.propose import propose
from coordinator.planning.published import equal_cluster
from coordinator.plans import named as strategies
from coordinator.tasks.plan import TrafficBytes
from imbrex import described
from imbrex.described import network_of
from models.catalogue import catalogue, loading
from models.check.check import Blocking, CheckReport
from models.check.check import check as run_check
from models.cut.units import Network
from models.run.reference import picture_inputs
from models.tensors.precision import Wire
from protos.errors import ImbrexError

ALL = "all"


@dataclass(frozen=True, slots=True)
class Predicted:
    """One strategy's plan for a number of devices, as predicted by the simulator."""

    count: int
    latency_s: float
    speedup: float
    traffic: TrafficBytes
    search_s: float
    devices: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The documented JSON object of a strategy."""
        return {
            "latency_s": self.latency_s,
            "speedup": round(self.speedup, 4),
            "bytes": asdict(self.traffic),
            "search_s": round(self.search_s, 6),
            "devices": list(self.devices),
        }


@dataclass(frozen=True, slots=True)
class Refused:
    """A strategy without a plan for this number of devices, and why."""

    count: int
    reason: str

    def as_json(self) -> dict[str, Any]:
        """The same object with all values unknown but the reason."""
        keys = ("latency_s", "speedup", "bytes", "search_s", "devices")
        return {**dict.fromkeys(keys), "reason": self.reason}


Outcome = Predicted | Refused


def load_cluster(path: str | Path) -> Cluster:
    """The cluster that a file describes.

    Raises:
        BadRequest: it cannot be read, or a key of it is unknown or wrong.
    """
    return described.load_cluster(Path(path))


def plan(
    model: str,
    cluster: Cluster | str | Path,
    strategy: str = "auto",
    *,
    devices: int = 0,
    wire: Wire = "exact",
) -> PlanFile:
    """A strategy's plan for a cluster, or for its `devices` fastest devices, in the form of a
    plan's file; maps may be sent as `wire` where that is faster.

    Raises:
        NotFound, BadRequest: no such model, cluster or strategy.
        Infeasible: no device, or none with enough memory.
    """
    planner, network = strategies.strategy(strategy), network_of(model)
    made = propose(planner, network, fastest(_cluster(cluster), devices), wire)
    return PlanFile.model_validate(plan_json(made, network))


def simulate(
    model: str, cluster: Cluster | str | Path, chosen: Sequence[str] = (ALL,)
) -> dict[str, Outcome]:
    """Predictions of strategies for a cluster, by name; `chosen` names some, or `all`.

    Raises:
        NotFound, BadRequest: no such model, cluster or strategy.
    """
    network, there = network_of(model), _cluster(cluster)
    return {name: predict(network, there, planner) for name, planner in planners(chosen).items()}


def planners(chosen: Sequence[str]) -> dict[str, Planner]:
    """The strategies of these names.

    Raises:
        NotFound: an unknown name.
    """
    named = strategies.names() if ALL in chosen else chosen
    return {name: strategies.strategy(name) for name in named}


def predict(network: Network, cluster: Cluster, planner: Planner) -> Outcome:
    """Plans, checks and simulates."""
    count = len(cluster.devices)
    began_s = time.perf_counter()
    try:
        made = propose(planner, network, cluster)
    except ImbrexError as error:
        return Refused(count, error.cause)
    search_s, latency_s = time.perf_counter() - began_s, made.predicted_latency_s
    called = {device.id: device.name for device in cluster.devices}
    return Predicted(
        count,
        latency_s,
        made.single_device_latency_s / latency_s,
        made.traffic,
        search_s,
        tuple(called[device] for device in made.devices),
    )


def check(model: str, grid: tuple[int, int] = (2, 2)) -> CheckReport:
    """Cuts every block of a model into rows x columns of tiles, runs them all on this machine, and
    compares with the whole model.

    Raises:
        NotFound, BadRequest: no such model, or it cannot be used.
    """
    loaded = catalogue.load(model)
    return checked(loaded, loading.network_of(loaded), grid, lambda _what, _share: None)


def checked(
    loaded: catalogue.LoadedModel,
    network: Network,
    grid: tuple[int, int],
    progress: Callable[[str, float], None],
) -> CheckReport:
    """`check` for a loaded model, with progress."""
    blocks = planned_blocks(network, grid[0] * grid[1])
    feeds = picture_inputs(network.graph)
    return run_check(
        loaded.proto, network, grid, blocks, feeds=feeds, plants=True, progress=progress
    )


def planned_blocks(network: Network, count: int) -> Blocking:
    """The blocks that AOFL chooses for `count` equal devices as in the paper."""
    return [(block.start, block.stop) for block in aofl(network, equal_cluster(count)).blocks]


def _cluster(cluster: Cluster | str | Path) -> Cluster:
    return cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
