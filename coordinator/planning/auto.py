"""`auto`: the best of the other strategies, each as published and without its barriers.

All are ranked by the event simulator. `single` is always among them, so a plan is never predicted
slower than one device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from coordinator.planning.aofl import aofl
from coordinator.planning.devices import Cluster, Planner
from coordinator.planning.efl import efl
from coordinator.planning.fused import fused
from coordinator.planning.lw import lw
from coordinator.planning.ofl import ofl
from coordinator.planning.plan import Plan
from coordinator.planning.simulator import simulate
from coordinator.planning.single import single
from models.units import Network
from protos.errors import Infeasible

CANDIDATES: Mapping[str, Planner] = {
    "fused": fused,
    "aofl": aofl,
    "single": single,
    "ofl": ofl,
    "efl": efl,
    "lw": lw,
}


def auto(network: Network, cluster: Cluster) -> Plan:
    """The plan with the least simulated latency; the first of the candidates among equals."""
    plans: dict[str, Plan] = {}
    refused: Infeasible | None = None
    for name, planner in CANDIDATES.items():
        try:
            plans.update(_variants(name, planner(network, cluster), network, cluster))
        except Infeasible as error:
            refused = refused or error
    if not plans:
        assert refused is not None
        raise refused
    best = min(plans.values(), key=lambda plan: plan.predicted_latency_s)
    compared = ", ".join(f"{name} {plan.predicted_latency_s:.3f} s" for name, plan in plans.items())
    chosen = next(name for name, plan in plans.items() if plan is best)
    note = f"This is the plan of {chosen}; simulated alike, the strategies take: {compared}."
    return replace(best, strategy="auto", notes=(note, *best.notes))


def _variants(
    name: str, plan: Plan, network: Network, cluster: Cluster
) -> Iterator[tuple[str, Plan]]:
    """The plan as published and, if it has several blocks, without barriers between them."""
    yield name, _simulated(plan, network, cluster)
    if len(plan.blocks) > 1:
        blocks = tuple(replace(block, barrier=False) for block in plan.blocks)
        yield f"{name} without barriers", _simulated(replace(plan, blocks=blocks), network, cluster)


def _simulated(plan: Plan, network: Network, cluster: Cluster) -> Plan:
    return replace(plan, predicted_latency_s=simulate(plan, network, cluster).latency_s)
