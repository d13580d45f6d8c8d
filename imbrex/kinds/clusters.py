"""Clusters of devices as their presets describe them, for planners and the simulator."""

from collections.abc import Mapping

from coordinator.costs.cluster import Cluster
from coordinator.planning.cluster_file import parse_cluster
from imbrex.kinds.presets import EngineRates, Preset

# Cluster files say what a weight costs, presets what a byte does.
_WEIGHT_BYTES = 4


def cluster_of(preset: Preset, count: int) -> Cluster:
    """The host's worker and `count - 1` more of the same kind."""
    return parse_cluster(cluster_text(preset, count))


def cluster_text(preset: Preset, count: int) -> str:
    """The cluster file of `cluster_of`."""
    return mixed_text(preset, {"pi": (preset, count - 1)})


def mixed_text(host: Preset, others: Mapping[str, tuple[Preset, int]]) -> str:
    """The cluster file of a host, whose worker computes, and so many devices of other kinds, by the
    first one's name. The network is the host's; a device whose own is slower has its bandwidth.
    """
    text = (
        f"[host]\n{_computes(host)}{_end(host)}endpoint_ms_per_task = {host.describe_ms}\n\n"
        f"{_engines('host', host)}[host.worker]\n{_worker(host)}\n"
        f'[network]\nmedium = "{host.medium}"\n'
        f"mbps = {host.mbps}\nlatency_ms = {host.latency_ms}\n"
    )
    for name, (preset, count) in others.items():
        if count:
            own = f"mbps = {preset.mbps}\n" if preset.mbps != host.mbps else ""
            text += f'\n[[device]]\nname = "{name}"\ncount = {count}\n{own}'
            text += _computes(preset) + _worker(preset) + _engines("device", preset)
    return text


def _computes(preset: Preset) -> str:
    return _rates(preset, preset.weight_ns)


def _engines(section: str, preset: Preset) -> str:
    return "".join(
        f'\n[[{section}.engine]]\nname = "{other.name}"\n{_rates(other, preset.weight_ns)}\n'
        for other in preset.engine
    )


def _rates(engine: EngineRates, weight_ns: float) -> str:
    default = {key: field.default for key, field in EngineRates.model_fields.items()}
    rates = {key: rate for key, rate in engine.rates.items() if rate != default[key]}
    rates["weight_ns"] = round(weight_ns * _WEIGHT_BYTES, 6)
    return "".join(f"{key} = {rate}\n" for key, rate in rates.items())


def _end(preset: Preset) -> str:
    return (
        f"endpoint_ms_per_message = {preset.message_ms}\nendpoint_ns_per_byte = {preset.byte_ns}\n"
    )


def _worker(preset: Preset) -> str:
    return (
        f"{_end(preset)}endpoint_ms_per_task = {preset.task_ms}\n"
        f"endpoint_ms_per_set_up = {preset.set_up_ms}\n"
        f"endpoint_ms_per_peer_message = {preset.peer_message_ms}\n"
        f"endpoint_ns_per_peer_byte = {preset.peer_byte_ns}\n"
    )
