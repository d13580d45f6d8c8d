"""A planner's plan, checked and with the simulator's prediction."""

from __future__ import annotations

from dataclasses import replace

from coordinator.costs.devices import Cluster, Planner
from coordinator.planning.legal import check_plan
from coordinator.planning.simulator import simulate
from coordinator.planning.spread import planned
from coordinator.tasks.plan import Plan
from models.units import Network
from models.wire import Wire


def propose(planner: Planner, network: Network, cluster: Cluster, allowed: Wire = "exact") -> Plan:
    """The plan of `planner`, with the simulator's prediction in place of the planner's own cost. If
    another wire is `allowed`, the plan for that wire if it is faster.

    Raises:
        IllegalPlan: the planner made a plan that can't be executed.
        Infeasible: no device, or none with enough memory.
    """
    exact = _checked(planner, network.wired("exact"), cluster)
    if allowed == "exact":
        return exact
    encoded = _checked(planner, network.wired(allowed), cluster)
    return min(exact, encoded, key=lambda plan: plan.predicted_latency_s)


def _checked(planner: Planner, network: Network, cluster: Cluster) -> Plan:
    plan = replace(planned(planner, network, cluster), wire=network.wire)
    check_plan(plan, network, cluster)
    return replace(plan, predicted_latency_s=simulate(plan, network, cluster).latency_s)
