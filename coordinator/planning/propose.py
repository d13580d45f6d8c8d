"""A planner's plan as it enters the world: checked, and predicted by the one simulator."""

from __future__ import annotations

from dataclasses import replace

from coordinator.planning.devices import Cluster, Planner
from coordinator.planning.legal import check_plan
from coordinator.planning.plan import Plan
from coordinator.planning.simulator import simulate
from models.units import Network


def propose(planner: Planner, network: Network, cluster: Cluster) -> Plan:
    """The plan of `planner`, with the simulator's prediction in place of the planner's own cost.

    Raises:
        IllegalPlan: the planner made a plan that can't be executed.
        Infeasible: no device, or none with enough memory.
    """
    plan = planner(network, cluster)
    check_plan(plan, network, cluster)
    return replace(plan, predicted_latency_s=simulate(plan, network, cluster).latency_s)
