"""A plan that somebody sends: mapped to the present devices, checked, and predicted."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from coordinator.costs.cluster import Cluster
from coordinator.planning.finish import plan_of_blocks
from coordinator.planning.plan_json import parse_plan
from coordinator.planning.planners.propose import made_for
from coordinator.tasks.plan import Plan, Tile
from models.cut.units import Network
from protos.errors import BadRequest, NotFound
from protos.wire.facts import DeviceId

# A device has one or a few tiles of a block; far more would only slow down the check.
MOST_TILES = 256


def adopt(text: str | bytes, network: Network, cluster: Cluster) -> Plan:
    """The plan of a file, for these devices. Its blocks are executed as they are; its predicted
    costs are computed again from this cluster's costs.

    Raises:
        BadRequest: not a plan, or another network's.
        NotFound: it names a device that is not in the cluster.
        IllegalPlan: it can't be executed.
    """
    plan = parse_plan(text, network)
    network = network.wired(plan.wire)
    for index, block in enumerate(plan.blocks):
        if len(block.tiles) > MOST_TILES:
            raise BadRequest(
                cause=f"block {index} of the plan has {len(block.tiles)} tiles",
                cure=f"Divide a block into at most {MOST_TILES} tiles",
            )
    plan = _for_devices(plan, _by_name(cluster))
    complete = plan_of_blocks(
        plan.strategy, plan.blocks, network, cluster, "the plan that was given does not use it"
    )
    return replace(complete, notes=plan.notes, made_for=made_for(cluster))


def plan_id(plan: Plan) -> str:
    """An identifier of what is executed: equal for equal blocks and wire."""
    return hashlib.sha256(repr((plan.blocks, plan.wire)).encode()).hexdigest()[:12]


def _by_name(cluster: Cluster) -> dict[str, DeviceId]:
    """Devices by the names that a plan may use: the id, or a name that only one device has."""
    names = [device.name for device in cluster.devices]
    by_name = {
        device.name: device.id for device in cluster.devices if names.count(device.name) == 1
    }
    return by_name | {str(device.id): device.id for device in cluster.devices}


def _for_devices(plan: Plan, known: Mapping[str, DeviceId]) -> Plan:
    def found(tile: Tile) -> Tile:
        if tile.device not in known:
            raise NotFound(
                cause=f"the plan is for a device {tile.device!r}, which is not in the cluster",
                cure=f"Known devices: {', '.join(sorted(known)) or 'none'}; plan for these, or "
                "see `imbrex status`",
            )
        return replace(tile, device=known[tile.device])

    blocks = tuple(
        replace(block, tiles=tuple(found(tile) for tile in block.tiles)) for block in plan.blocks
    )
    return replace(plan, blocks=blocks)
