"""Clusters of one kind of device, as their preset describes it, for planners and the simulator."""

from __future__ import annotations

from coordinator.costs.cluster import Cluster
from coordinator.planning.cluster_file import parse_cluster
from imbrex.kinds.presets import Preset

# Cluster files say what a weight costs, presets what a byte does.
_WEIGHT_BYTES = 4


def cluster_of(preset: Preset, count: int) -> Cluster:
    """The host's worker and `count - 1` more of the same kind."""
    return parse_cluster(cluster_text(preset, count))


def cluster_text(preset: Preset, count: int) -> str:
    """The cluster file of `cluster_of`."""
    end = (
        f"endpoint_ms_per_message = {preset.message_ms}\nendpoint_ns_per_byte = {preset.byte_ns}\n"
    )
    worker = (
        f"{end}endpoint_ms_per_task = {preset.task_ms}\n"
        f"endpoint_ms_per_peer_message = {preset.peer_message_ms}\n"
        f"endpoint_ns_per_peer_byte = {preset.peer_byte_ns}\n"
    )
    default = {key: field.default for key, field in Preset.model_fields.items()}
    rates = {key: rate for key, rate in preset.rates.items() if rate != default[key]}
    rates["weight_ns"] = preset.weight_ns * _WEIGHT_BYTES
    computes = "".join(f"{key} = {rate}\n" for key, rate in rates.items())
    text = (
        f"[host]\n{computes}{end}endpoint_ms_per_task = {preset.describe_ms}\n\n"
        f"[host.worker]\n{worker}\n"
        f'[network]\nmedium = "{preset.medium}"\n'
        f"mbps = {preset.mbps}\nlatency_ms = {preset.latency_ms}\n"
    )
    if count > 1:
        text += f'\n[[device]]\nname = "pi"\ncount = {count - 1}\n{computes}{worker}'
    return text
