"""`single`: everything on the one device that answers first: in one program, or in two that
different engines compute faster.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from coordinator.costs.cluster import Cluster
from coordinator.planning.geometry.marks import Mark
from coordinator.planning.search.decide import Decision, planned
from coordinator.planning.search.division_options import alone
from coordinator.planning.search.tables import Tables
from coordinator.planning.simulate.simulator import simulate
from coordinator.planning.single_device import best_alone
from coordinator.tasks.plan import Plan
from models.cut.units import Network
from models.tensors.memory import megabytes
from protos.errors import Infeasible, TooLittleMemory


def single(network: Network, cluster: Cluster) -> Plan:
    """The whole network on the fastest device with enough memory: one block, or two where another
    engine computes the beginning or the end so much faster that it gains a twentieth.

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
    plan = planned(network, cluster, "single", partial(_decide, network))
    if len(plan.blocks) == 1:
        return plan
    head, tail = plan.blocks
    plan = replace(plan, blocks=(head, replace(tail, barrier=False, exchange="peer")))
    simulation = simulate(plan, network, cluster)
    return replace(plan, predicted_latency_s=simulation.latency_s, traffic=simulation.traffic)


def _decide(network: Network, tables: Tables) -> Decision:
    first, last = tables.marks[0], tables.last
    options = {
        option.devices[0].id: option
        for option in alone(tables)
        if np.isfinite(option.seconds[first, last])
    }
    if not options:
        weights = tables.geometry.weight_bytes_before[-1]
        raise TooLittleMemory(
            cause=f"no device has memory for the network's {megabytes(weights)} of weights",
            cure="Add a device with more memory, or raise the workers' memory limit.",
        )
    best = best_alone(network, [option.devices[0] for option in options.values()])
    option = options[best.device.id]
    cuts = [(first, last, option)]
    if best.cut:
        cut = Mark(tables.geometry.boundaries.index(best.cut))
        cuts = [(first, cut, option), (cut, last, option)]
    return Decision(cuts, otherwise="one device alone computes everything")
