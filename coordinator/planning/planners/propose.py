"""A planner's plan, checked, with the simulator's prediction: the one time told of it."""

from dataclasses import replace
from functools import partial

from coordinator.costs.cluster import Cluster, Planner
from coordinator.costs.corrections import is_measured
from coordinator.planning.legal import IllegalPlan, check_plan
from coordinator.planning.planners.auto import auto
from coordinator.planning.planners.single import single
from coordinator.planning.planners.spread import planned
from coordinator.planning.plugin_errors import broken, defined_at, guarded, is_ours
from coordinator.planning.simulate.simulator import simulate
from coordinator.planning.whole_network_devices import best_of
from coordinator.tasks.plan import MadeFor, Plan
from models.cut.units import Network
from models.tensors.precision import Wire
from protos.errors import ImbrexError


def propose(planner: Planner, network: Network, cluster: Cluster, allowed: Wire = "exact") -> Plan:
    """The plan of `planner`, with the simulator's prediction in place of the planner's own cost. If
    another wire is `allowed`, the plan for that wire if it is faster.

    Raises:
        BrokenPlanner: the planner raises, or returns something that is not a plan.
        IllegalPlan: the planner made a plan that can't be executed.
        Infeasible: no device, or none with enough memory.
    """
    exact = _checked(planner, network.wired("exact"), cluster)
    if allowed == "exact":
        return exact
    encoded = _checked(planner, network.wired(allowed), cluster)
    return min(exact, encoded, key=lambda plan: plan.predicted_latency_s)


def _checked(planner: Planner, network: Network, cluster: Cluster) -> Plan:
    plan = best_of(
        network,
        cluster,
        partial(_simulated, planner),
        partial(_simulated, single),
        only_divided=planner not in (single, auto),
    )
    if planner is auto and plan.strategy != "auto":
        plan = replace(plan, strategy="auto", notes=("Chosen: single.", *plan.notes))
    return replace(plan, made_for=made_for(cluster))


def _simulated(planner: Planner, network: Network, cluster: Cluster) -> Plan:
    try:
        in_groups = planner is not auto  # which has tried them
        plan = planned(guarded(planner), network, cluster, in_groups=in_groups)
        plan = replace(plan, wire=network.wire)
        check_plan(plan, network, cluster)
    except IllegalPlan as error:
        raise error if is_ours(planner) else error.by(defined_at(planner)) from error
    except ImbrexError:
        raise
    except Exception as error:
        raise broken(planner, error) from error
    predicted_s = simulate(plan, network, cluster).latency_s
    return replace(plan, predicted_latency_s=predicted_s)


def made_for(cluster: Cluster) -> tuple[MadeFor, ...]:
    """What a plan for this cluster says of its devices."""
    return tuple(MadeFor(device.id, is_measured(device.costs)) for device in cluster.devices)
