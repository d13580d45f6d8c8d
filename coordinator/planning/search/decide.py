"""From a planner's decision to a complete plan that fits in memory."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coordinator.costs.cluster import Cluster
from coordinator.planning.finish import NOT_USED, block_of, finished, published
from coordinator.planning.geometry.marks import Mark
from coordinator.planning.plan_memory import overfilled, too_little_memory, weight_room_bytes
from coordinator.planning.search.cuts import best_cuts, cheapest
from coordinator.planning.search.division_options import Option
from coordinator.planning.search.tables import Tables, tables_of
from coordinator.tasks.plan import Plan, Unused
from models.cut.units import Network
from models.tensors.memory import megabytes
from protos.errors import TooLittleMemory
from protos.wire.facts import DeviceId


@dataclass(frozen=True, slots=True)
class Decision:
    """Blocks between marks, each with the option that runs it; why devices are left out (`reasons`
    by device, `otherwise` for the rest); and notes for people.
    """

    blocks: Sequence[tuple[Mark, Mark, Option]]
    reasons: Mapping[DeviceId, str] = field(default_factory=dict)
    otherwise: str = NOT_USED
    notes: tuple[str, ...] = ()


Decide = Callable[[Tables], Decision]


def planned(network: Network, cluster: Cluster, strategy: str, decide: Decide) -> Plan:
    """The plan of a decision. Devices that it would overfill are removed, and it is made again.

    Raises:
        Infeasible: no device, or no device with enough memory.
    """

    def make(left: Cluster) -> Plan:
        tables = tables_of(network, left)
        check_room(network, tables)
        there = replace(left, devices=tables.devices)
        return _plan(network, there, strategy, decide(tables), tables.geometry.boundaries)

    return fitting(network, cluster, make)


def fitting(network: Network, cluster: Cluster, make: Callable[[Cluster], Plan]) -> Plan:
    """The plan that `make` returns without the devices that it would overfill.

    Raises:
        Infeasible: no device is left.
    """
    too_small: dict[DeviceId, Unused] = {}
    left = cluster
    while True:
        plan = make(left)
        over = overfilled(network, left, plan)
        if not over:
            break
        for name, need in over.items():
            reason = (
                f"its share would need {megabytes(need.total_bytes())}, "
                f"it has {megabytes(left.device(name).memory_bytes)}"
            )
            too_small[name] = Unused(name, reason)
        kept = tuple(device for device in left.devices if device.id not in over)
        if not kept:
            raise too_little_memory(network, left, over)
        left = replace(left, devices=kept)
    return replace(plan, unused=(*plan.unused, *too_small.values()))


def place(options: Sequence[Option]) -> tuple[float, list[tuple[Mark, Mark, Option]]]:
    """The best cuts if each block takes its cheapest option, and their total cost.

    Raises:
        TooLittleMemory: some unit fits on no device.
    """
    seconds, option_of = cheapest(options)
    total_s, cuts = best_cuts(seconds)
    if not cuts:
        raise TooLittleMemory(
            cause="no device has enough memory for the weights of one of the layers",
            cure="Add a device with more memory, or raise the workers' memory limit.",
        )
    return total_s, [(start, end, option_of(start, end)) for start, end in cuts]


def _plan(
    network: Network, cluster: Cluster, strategy: str, decision: Decision, boundaries: Sequence[int]
) -> Plan:
    blocks = [
        block_of(network, boundaries[start], boundaries[end], option.shares(start, end))
        for start, end, option in decision.blocks
    ]
    predicted, reasons = published(network, cluster, blocks), decision.reasons
    plan = finished(
        strategy, blocks, network, cluster, predicted, unused=reasons, otherwise=decision.otherwise
    )
    return replace(plan, notes=decision.notes)


def check_room(network: Network, tables: Tables, divided: Container[Mark] = ()) -> None:
    """Refuses a network with a layer that fits on no device, except layers whose weights are
    divided (`divided`, given by the mark before them).

    Raises:
        TooLittleMemory: which layer needs how much, and how much there is.
    """
    for start in tables.marks[:-1]:
        if start not in divided and not tables.fits[:, start, start + 1].any():
            raise no_room(network, tables, start)


def no_room(network: Network, tables: Tables, start: Mark) -> TooLittleMemory:
    """The error for units after the mark `start` that do not fit, however they are divided."""
    boundaries, before = tables.geometry.boundaries, tables.geometry.weight_bytes_before
    units = network.units[boundaries[start] : boundaries[start + 1]]
    rooms = [max(0.0, weight_room_bytes(device)) for device in tables.devices]
    return TooLittleMemory(
        cause=f"{' to '.join(dict.fromkeys((units[0].name, units[-1].name)))} needs "
        f"{megabytes(before[start + 1] - before[start])} for its weights; for weights the "
        f"largest device has {megabytes(max(rooms))}, all together {megabytes(sum(rooms))}",
        cure="Add devices with more memory, or raise the workers' memory limit.",
    )
