"""Devices that take whole networks only: they take no part in any division.

Planners see the other devices alone. A device with limits can be the one that computes everything,
and in the throughput mode it is a group of its own.
"""

from collections.abc import Callable
from dataclasses import replace

from coordinator.costs.cluster import Cluster, Device
from coordinator.planning.legal import IllegalPlan
from coordinator.planning.single_device import best_alone
from coordinator.tasks.plan import Plan, Unused
from models.cut.program import NetworkKey
from models.cut.units import Network
from protos.errors import Infeasible

# A planner's plan for some of the devices.
PlanFunction = Callable[[Network, Cluster], Plan]


def without_others(network: Network, cluster: Cluster) -> Cluster:
    """The cluster without devices whose limits exclude this network.

    Raises:
        Infeasible: there is no other device.
    """
    whole = NetworkKey.of(network.graph)
    kept = tuple(d for d in cluster.devices if d.limits is None or d.limits.take(*whole))
    if cluster.devices and not kept:
        names = ", ".join(f"{device.name} ({device.limits})" for device in cluster.devices)
        raise Infeasible(
            cause=f"no device takes {network.name}: {names}",
            cure="Add a device with another engine, or set engine = auto there",
        )
    return replace(cluster, devices=kept)


def parted(cluster: Cluster) -> tuple[Cluster, tuple[Device, ...]]:
    """The devices that take any program, and those that take whole networks only."""
    free = tuple(device for device in cluster.devices if device.limits is None)
    limited = tuple(device for device in cluster.devices if device.limits is not None)
    return replace(cluster, devices=free), limited


def best_of(
    network: Network,
    cluster: Cluster,
    divided: PlanFunction,
    alone: PlanFunction,
    *,
    only_divided: bool,
) -> Plan:
    """The faster of the plan that `divided` makes for the devices without limits, and of those that
    `alone` makes for one device with limits; the latter, if it is `only_divided`, only where there
    is no other plan.

    Raises:
        Infeasible: there is no plan.
    """
    usable = without_others(network, cluster)
    free, limited = parted(usable)
    found: list[Plan] = []
    refused: Infeasible | None = None
    try:
        if free.devices or not limited:
            found.append(divided(network, free))
    except IllegalPlan:
        raise
    except Infeasible as error:
        refused = error
    for device in limited if not (found and only_divided) else ():
        try:
            found.append(alone(network, replace(cluster, devices=(device,))))
        except Infeasible as error:
            refused = refused or error
    if not found:
        assert refused is not None
        raise refused
    plan = min(found, key=lambda plan: plan.predicted_latency_s)
    is_free = len(free.devices) == len(cluster.devices)
    return plan if is_free else _explained(plan, network, cluster, usable)


def _explained(plan: Plan, network: Network, cluster: Cluster, usable: Cluster) -> Plan:
    """The plan, compared with every device that could have computed it alone, and with the reason
    for each that it leaves out.
    """
    best = best_alone(network, usable.devices)
    told = {unused.device: unused for unused in plan.unused}
    for device in cluster.devices:
        if device.id not in plan.devices and device.id not in told:
            why = f"takes {device.limits}" if device.limits else "one device alone is faster"
            told[device.id] = Unused(device.id, why)
    return replace(
        plan,
        single_device_latency_s=best.seconds,
        baseline_device=best.device.id,
        unused=tuple(told.values()),
    )
