"""The live cluster as a cluster file, with the profiles of its devices beside it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordinator.costs.affine import Costs
from coordinator.costs.cluster import Cluster, Device, Link
from coordinator.costs.corrections import CorrectedCosts
from coordinator.costs.profile_json import save_profile
from coordinator.costs.regression import DeviceProfile, RegressionCosts
from coordinator.planning.cluster_file import HOST, dump_cluster
from protos.daemon.texts import plain_name
from protos.wire.facts import DeviceId


@dataclass(frozen=True, slots=True)
class Described:
    """The text of a cluster file, and the texts of the profiles that it refers to, by file name."""

    text: str
    profiles: dict[str, str]


def describe(cluster: Cluster, stem: str) -> Described:
    """The cluster's file. Devices appear by name where names are unique; corrections from observed
    tasks are folded into the profiles. `stem` begins the profiles' file names.
    """
    stem = _plain(stem) or "cluster"
    called = _named(cluster.devices)
    profiles: dict[DeviceId, str] = {}
    texts: dict[str, str] = {}
    for device in called:
        profile = _profile_of(device.costs)
        if profile is not None:
            file = f"{stem}-{_plain(device.id)}.json"
            if file in texts:
                file = f"{stem}-{len(texts)}-{_plain(device.id)}.json"
            profiles[device.id], texts[file] = file, save_profile(profile)
    links = [device.link for device in called if not device.host]
    uplink = (
        Link(
            bytes_per_s=sum(link.bytes_per_s for link in links),
            message_s=statistics.median(link.message_s for link in links),
            latency_s=statistics.median(link.latency_s for link in links),
        )
        if links and cluster.uplink is None
        else cluster.uplink
    )
    text = dump_cluster(Cluster(tuple(called), cluster.medium, uplink), profiles)
    return Described(text, texts)


def _named(devices: Sequence[Device]) -> list[Device]:
    names = [device.name for device in devices]
    called = []
    for device in sorted(
        devices, key=lambda device: (not device.host, len(device.name), device.name)
    ):
        alone = names.count(device.name) == 1 and device.name != HOST
        name = HOST if device.host else device.name if alone else device.id
        called.append(replace(device, id=DeviceId(name), name=name))
    return called


def _profile_of(costs: Costs, factor: float = 1.0) -> DeviceProfile | None:
    """The profile that predicts the same as these costs; None for costs from a rate."""
    match costs:
        case CorrectedCosts(inner, more):
            return _profile_of(inner, factor * more)
        case RegressionCosts(profile):
            others = {name: other.scaled(factor) for name, other in profile.others.items()}
            return replace(profile.scaled(factor), others=others)
        case _:
            return None


def _plain(name: str) -> str:
    """A name as part of a file name; device names come from the network, so they are not
    trusted.
    """
    return plain_name(name, "[^A-Za-z0-9_-]")[-64:]
