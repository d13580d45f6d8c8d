"""`single`: everything on the one device that answers first."""

import numpy as np

from coordinator.costs.cluster import Cluster
from coordinator.planning.search.decide import Decision, planned
from coordinator.planning.search.division_options import alone
from coordinator.planning.search.tables import Tables
from coordinator.tasks.plan import Plan
from models.cut.units import Network
from models.tensors.memory import megabytes
from protos.errors import Infeasible, TooLittleMemory


def single(network: Network, cluster: Cluster) -> Plan:
    """The whole network in one block on the fastest device with enough memory.

    Raises:
        Infeasible: there is none.
    """
    try:
        return on_one(network, cluster)
    except TooLittleMemory as error:
        cure = "Split it with another strategy, or raise the workers' memory limit."
        raise Infeasible(cause=error.cause, cure=cure) from error


def on_one(network: Network, cluster: Cluster) -> Plan:
    """The same, for strategies that can use several devices.

    Raises:
        TooLittleMemory: no device holds it alone.
    """
    return planned(network, cluster, "single", _decide)


def _decide(tables: Tables) -> Decision:
    options = alone(tables)
    first, last = tables.marks[0], tables.last
    best = min(options, key=lambda option: option.seconds[first, last])
    if not np.isfinite(best.seconds[first, last]):
        weights = tables.geometry.weight_bytes_before[-1]
        raise TooLittleMemory(
            cause=f"no device has memory for the network's {megabytes(weights)} of weights",
            cure="Add a device with more memory, or raise the workers' memory limit.",
        )
    return Decision([(first, last, best)], otherwise="one device alone computes everything")
