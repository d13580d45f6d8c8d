"""`single`: everything on the one device that answers first."""

from __future__ import annotations

import numpy as np

from coordinator.costs.devices import Cluster
from coordinator.planning.decide import Decision, planned
from coordinator.planning.options import alone
from coordinator.planning.tables import Tables
from coordinator.tasks.plan import Plan
from models.memory import megabytes
from models.units import Network
from protos.errors import Infeasible


def single(network: Network, cluster: Cluster) -> Plan:
    """The whole network in one block on the fastest device with enough memory."""
    return planned(network, cluster, "single", _decide)


def _decide(tables: Tables) -> Decision:
    options = alone(tables)
    end = tables.marks - 1
    best = min(options, key=lambda option: option.seconds[0, end])
    if not np.isfinite(best.seconds[0, end]):
        weights = tables.geometry.weight_bytes_before[-1]
        raise Infeasible(
            cause=f"no device has memory for the network's {megabytes(weights)} of weights",
            cure="Split it with another strategy, or raise the workers' memory limit.",
        )
    return Decision([(0, end, best)], otherwise="one device alone computes everything")
