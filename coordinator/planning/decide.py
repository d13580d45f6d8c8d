"""What every planner shares: from its decision to a plan that is complete and fits in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coordinator.planning.assemble import Placed, assemble
from coordinator.planning.devices import Cluster, Device
from coordinator.planning.memory import Need, needs
from coordinator.planning.options import Option
from coordinator.planning.plan import DeviceId, Plan, Unused
from coordinator.planning.search import best_cuts, cheapest
from coordinator.planning.tables import Tables, tables_of
from models.units import Network, layers_of
from protos.errors import Infeasible


@dataclass(frozen=True, slots=True)
class Decision:
    """Blocks between marks with the option that runs each; why devices are left out (`reasons`
    by device, `otherwise` for the rest); notes for people.
    """

    blocks: Sequence[tuple[int, int, Option]]
    reasons: Mapping[DeviceId, str] = field(default_factory=dict)
    otherwise: str = "this strategy does not use it"
    notes: tuple[str, ...] = ()


Decide = Callable[[Tables], Decision]


def planned(network: Network, cluster: Cluster, strategy: str, decide: Decide) -> Plan:
    """The plan of a decision. Devices that it would overfill are taken out, and it is made again.

    Raises:
        Infeasible: no device, or no device with enough memory.
    """
    too_small: dict[DeviceId, Unused] = {}
    left = cluster
    while True:
        tables = tables_of(network, left)
        decision = decide(tables)
        plan = _plan(network, tables, strategy, decision)
        over = _overfilled(network, left, plan)
        if not over:
            break
        for name, need in over.items():
            too_small[name] = Unused(name, _too_little(left.device(name), need))
        kept = tuple(device for device in left.devices if device.id not in over)
        if not kept:
            raise _infeasible(network, left, over)
        left = replace(left, devices=kept)
    return replace(plan, unused=(*plan.unused, *too_small.values()))


def place(options: Sequence[Option]) -> tuple[float, list[tuple[int, int, Option]]]:
    """The best cuts if each block takes its cheapest option, and what they cost.

    Raises:
        Infeasible: some unit fits on no device.
    """
    seconds, option_of = cheapest(options)
    total_s, cuts = best_cuts(seconds)
    if not cuts:
        raise Infeasible(
            cause="no device has enough memory for the weights of one of the layers",
            cure="Add a device with more memory, or raise the workers' memory limit.",
        )
    return total_s, [(start, end, option_of(start, end)) for start, end in cuts]


def _plan(network: Network, tables: Tables, strategy: str, decision: Decision) -> Plan:
    marks = tables.geometry.marks
    placed = [
        Placed(marks[start], marks[end], option.shares(start, end))
        for start, end, option in decision.blocks
    ]
    plan = assemble(network, tables, strategy, placed)
    left_out = tuple(
        Unused(device.id, decision.reasons.get(device.id, decision.otherwise))
        for device in tables.devices
        if device.id not in plan.devices
    )
    return replace(plan, unused=left_out, notes=decision.notes)


def _overfilled(network: Network, cluster: Cluster, plan: Plan) -> dict[DeviceId, Need]:
    caps = {device.id: device.memory_bytes for device in cluster.devices if device.memory_bytes}
    if not caps:
        return {}
    return {
        name: need
        for name, need in needs(network, plan).items()
        if name in caps and need.total_bytes > caps[name]
    }


def _too_little(device: Device, need: Need) -> str:
    return (
        f"its share would need {need.total_bytes / 1e6:.0f} MB, "
        f"it has {device.memory_bytes / 1e6:.0f} MB"
    )


def _infeasible(network: Network, cluster: Cluster, over: Mapping[DeviceId, Need]) -> Infeasible:
    device = max((cluster.device(name) for name in over), key=lambda each: each.memory_bytes)
    need = over[device.id]
    assert need.largest is not None
    layers = layers_of(network.units[need.largest.start : need.largest.stop])
    return Infeasible(
        cause=f"{device.name} would need {need.total_bytes / 1e6:.0f} MB and has "
        f"{device.memory_bytes / 1e6:.0f} MB; {layers[0]} to {layers[-1]} alone hold "
        f"{need.largest_bytes / 1e6:.0f} MB of weights",
        cure="Add devices with more memory, or raise the workers' memory limit.",
    )
