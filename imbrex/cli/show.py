"""`imbrex models show`: a summary of a model with its gain, then its units, split or not."""

from collections import Counter
from pathlib import Path
from typing import Any

from onnx import helper
from rich.console import Console
from rich.text import Text

from coordinator.costs.cluster import Cluster
from coordinator.planning.planners.auto import auto
from coordinator.planning.planners.propose import propose
from coordinator.tasks.plan import Plan
from imbrex import terminal
from imbrex.described import load_cluster
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import KINDS, load_kind
from models.catalogue import catalogue
from models.catalogue.catalogue import LoadedModel
from models.catalogue.loading import network_of
from models.check.summary import Summary, UnitSummary, summarise
from models.graph.graph import Graph
from models.graph.shapes import TensorInfo

# The default cluster: that of `imbrex demo`.
_TOLD_APART = 0.001
DEVICES, KIND = 4, KINDS["pi4"]


def show(model: str, cluster: Path | None, *, as_json: bool) -> int:
    """Prints the report: the summary at once, what planning finds a second or two later."""
    with terminal.waiting(f"reading {model}"):
        loaded = catalogue.load(model)
        network = network_of(loaded)
        summary = summarise(network)
    described, where = _cluster(cluster)
    if not as_json:
        _summarise(loaded, network.graph, summary, terminal.out())
    with terminal.waiting("planning"):
        plan = propose(auto, network, described)
    if as_json:
        report = _json(loaded, network.graph, summary)
        terminal.print_json(
            report
            | {
                "sample": {
                    "cluster": where,
                    "devices": len(described.devices),
                    "devices_used": len(plan.devices),
                    "strategy": plan.strategy,
                    "blocks": len(plan.blocks),
                    "predicted_latency_s": plan.predicted_latency_s,
                    "single_device_latency_s": plan.single_device_latency_s,
                    "speedup": round(_speedup(plan), 4),
                }
            }
        )
    else:
        terminal.out().print(
            f"gain: {_speedup(plan):.2f}x predicted on {where} (it uses {len(plan.devices)}): "
            f"{terminal.duration(plan.predicted_latency_s)} instead of "
            f"{terminal.duration(plan.single_device_latency_s)} on one alone"
        )
        _list(summary, terminal.out())
    return 0


def _cluster(file: Path | None) -> tuple[Cluster, str]:
    """The cluster to predict for, and what to call it."""
    if file is not None:
        return load_cluster(file), file.name
    preset = load_kind(KIND.preset)
    return cluster_of(preset, DEVICES), f"{DEVICES} {KIND.title}s"


def _json(loaded: LoadedModel, graph: Graph, summary: Summary) -> dict[str, Any]:
    return {
        "model": loaded.name,
        "trained": loaded.trained,
        "opset": graph.opset,
        "inputs": [_tensor(name, graph.tensors[name]) for name in graph.inputs],
        "outputs": [_tensor(name, graph.tensors[name]) for name in graph.outputs],
        "nodes": len(graph.nodes),
        "operators": dict(Counter(node.op for node in graph.nodes)),
        "flop": summary.flop,
        "weight_bytes": summary.weight_bytes,
        "partitioned_flop_share": round(summary.partitioned_flop_share, 6),
        "partitioned_time_share": round(summary.partitioned_time_share, 6),
        "unknown_work": list(summary.unknown),
        "largest_activations": [activation.as_json() for activation in summary.largest],
        "units": [unit.as_json() for unit in summary.units],
        "refusals": [
            {"layer": refusal.layer, "op": refusal.op, "reason": refusal.reason}
            for refusal in summary.refusals
        ],
    }


def _tensor(name: str, info: TensorInfo) -> dict[str, Any]:
    return {"name": name, "shape": list(info.told_shape), "type": _type(info)}


def _type(info: TensorInfo) -> str:
    return str(helper.tensor_dtype_to_np_dtype(info.data_type))


def _speedup(plan: Plan) -> float:
    return plan.single_device_latency_s / plan.predicted_latency_s


def _summarise(loaded: LoadedModel, graph: Graph, summary: Summary, console: Console) -> None:
    weights = "untrained"
    if loaded.trained:
        is_known = loaded.sidecar or loaded.name in catalogue.names()
        weights = "trained" if is_known else "the file's weights"
    console.print(
        f"{loaded.name} ({weights}, opset {graph.opset}): {len(graph.nodes)} nodes in "
        f"{len(summary.units)} units, {summary.flop / 1e9:.2f} GFLOP, "
        f"{terminal.size(summary.weight_bytes)} of constants"
    )
    for what, names in (("input", graph.inputs), ("output", graph.outputs)):
        for name in names:
            info = graph.tensors[name]
            shape = "known when computed" if info.is_dynamic else _shape(info.shape)
            console.print(f"{what:6} {name}: {_type(info)} {shape}")
    flop, time = summary.partitioned_flop_share, summary.partitioned_time_share
    also = f", {time:.1%} of the time" if abs(flop - time) >= _TOLD_APART else ""
    console.print(
        f"split: {flop:.1%} of the FLOPs{also}; "
        f"{len(summary.refusals)} of {len(graph.nodes)} nodes keep their units whole"
    )
    if summary.unknown:
        console.print(
            f"not known: the work of {', '.join(summary.unknown)}, which predictions leave out"
        )
    largest = (
        f"{activation.name} {terminal.size(activation.nbytes)}" for activation in summary.largest
    )
    console.print(f"largest activations: {', '.join(largest)}")


def _list(summary: Summary, console: Console) -> None:
    console.print()
    made = terminal.table(
        *("unit", "operators", ">MFLOP", ">weights, MB", "output", ">live behind it, MB", ""),
        "split",
    )
    for unit in summary.units:
        made.add_row(
            unit.name,
            _operators(unit),
            f"{unit.flop / 1e6:.1f}",
            terminal.mb(unit.weight_bytes),
            _shape(unit.output.shape),
            terminal.mb(unit.live_bytes),
            _boundary(unit),
            Text(f"no: {unit.reason}", "yellow") if unit.reason else Text("yes", "green"),
        )
    console.print(made)


def _operators(unit: UnitSummary) -> str:
    counted = Counter(unit.operators)
    return " ".join(f"{count} {op}" if count > 1 else op for op, count in counted.items())


def _boundary(unit: UnitSummary) -> str:
    """The tensors that cross the boundary, if there are others than the unit's output."""
    several = f"{len(unit.live)} tensors" if len(unit.live) > 1 else ""
    return f"{several}, a shortcut" if unit.bypass else several


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
