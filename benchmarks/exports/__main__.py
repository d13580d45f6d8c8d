"""Today's networks, exported from public packages: what is split, how exactly, and how much faster.

    python -m benchmarks.exports [--networks yolo11n,vit_b_16.script] [--folder FOLDER] [--json]
                                 [--no-check]

The first run makes an environment with PyTorch for the exports (gigabytes) and keeps the files.
Weights are seeded, or shipped in packages: nothing else is downloaded. For each network: seconds of
CPU to load it, the share of all FLOPs in units that are split (each of four devices computes at
most 60 % of such a unit), the largest difference from the whole network in onnxruntime when all of
it is cut in four, and the speed-up of `auto` on emulated clusters, by the event simulator with the
lab's presets; a detector whose head is known answers with its likely boxes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from benchmarks.exports.files import FOLDER, exported
from benchmarks.lab.pictures import for_pictures
from benchmarks.report import command_line, emit
from coordinator.planning.planners.auto import auto
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import load_kind
from models.catalogue import catalogue
from models.catalogue.loading import network_of
from models.check.check import check, fused
from models.cut.tiles import grid, tile_boxes, whole_map
from models.cut.units import Network, Unit, divide
from models.operators.work import tile_works
from models.tensors.boxes import Box

TILES = 4
# A unit is split if no device computes more of it.
LARGEST_SHARE = 0.6
CLUSTERS = (("pi4-gbe", 4), ("pi4-gbe", 8), ("pi5-gbe", 4))
_PLAIN = {"pi4-gbe": "Pi 4", "pi5-gbe": "Pi 5"}
NETWORKS = (
    *("yolov8n", "yolov8n-seg", "yolo11n", "yolo11s", "yolo12n", "yolo26n", "rtdetr-l"),
    *("yolov8n.nms", "yolov8n.half", "yolo11n.opset13", "yolo11n.opset20"),
    *("vit_b_16.script", "vit_b_16.dynamo", "deit_tiny.script", "deit_tiny.dynamo"),
    *("swin_t.script", "swin_t.dynamo", "swin_t.script.opset13", "repvit_m0_9.script"),
    *("repvit_m0_9.dynamo", "mobilenetv4_conv_small.script", "mobilenetv4_conv_small.dynamo"),
    *("mobilenetv4_hybrid.script", "fastvit_t8.script", "efficientvit_b0.script"),
    *("edgenext.script", "convnextv2_atto.script", "levit_128.script", "mobilevit.script"),
    *("lraspp.script", "lraspp.dynamo", "ssdlite320.script", "fasterrcnn.script"),
    *("ppocr_det@480x640", "ppocr_rec@48x320", "ppocr_cls@48x192", "nudenet@320x320"),
    "yolov8n@2176x3840",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a row for each network; 1 if an answer differs."""
    parser = command_line(__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--no-check", action="store_true", help="only load and simulate")
    given = parser.parse_args(arguments)
    names = given.networks.split(",")
    rows = []
    for path in exported(names, given.folder):
        rows.append(_row(path, checks=not given.no_check))
        print(_line(rows[-1]), file=sys.stderr, flush=True)
    agree = all(row.get("ok", True) for row in rows)
    emit({"rows": rows}, given, "all agree" if agree else "an answer DIFFERS")
    return 0 if agree else 1


def _row(path: Path, *, checks: bool) -> dict[str, Any]:
    began_s = time.process_time()
    loaded = catalogue.load(str(path))
    network = network_of(replace(loaded, sidecar=for_pictures(loaded)))
    row: dict[str, Any] = {
        "network": path.stem,
        "load_cpu_s": time.process_time() - began_s,
        "units": len(network.units),
        "boxes": any(info.read_share < 1 for info in network.graph.tensors.values()),
        "split_share": split_share(network),
        "clusters": list(_simulated(network)),
    }
    if checks:
        proto = onnx.load(path)
        plain = divide(network_of(loaded).graph)
        report = check(proto, plain, (TILES, 1), fused(plain))
        row |= {"ok": report.ok, "max_rel_error": report.comparison.max_rel_error}
    return row


def _simulated(network: Network) -> Iterator[dict[str, Any]]:
    for kind, count in CLUSTERS:
        cluster, began_s = cluster_of(load_kind(kind), count), time.process_time()
        plan = auto(network, cluster)
        moved = plan.traffic
        yield {
            "preset": kind,
            "devices": count,
            "alone_s": plan.single_device_latency_s,
            "together_s": plan.predicted_latency_s,
            "speedup": plan.single_device_latency_s / plan.predicted_latency_s,
            "devices_used": len(plan.devices),
            "moved_bytes": moved.scatter + moved.gather + moved.halo,
            "search_cpu_s": time.process_time() - began_s,
        }


def split_share(network: Network, tiles: int = TILES) -> float:
    """The share of all FLOPs in units of which no tile computes more than `LARGEST_SHARE`."""
    parts = [largest_part(network, index, tiles) for index in range(len(network.units))]
    total = sum(flop for flop, _ in parts)
    return sum(flop for flop, share in parts if share <= LARGEST_SHARE) / max(1, total)


def largest_part(network: Network, index: int, tiles: int = TILES) -> tuple[int, float]:
    """A unit's FLOPs, and the largest tile's share of them."""
    unit = network.units[index]
    parts = grid(network, index, index + 1, tiles if unit.splits else 1, 1)
    demands = (tile_boxes(network, index, index + 1, part) for part in parts)
    largest = max(_flop(unit, demand) for demand in demands if demand)
    whole = tile_boxes(network, index, index + 1, whole_map(network, index, index + 1))
    flop = _flop(unit, whole)
    return flop, largest / max(1, flop)


def _flop(unit: Unit, demand: Mapping[str, Box]) -> int:
    return sum(work.flop for work in tile_works(unit.graph, unit.nodes, demand))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a row for each network."""
    clusters = [f"{count} x {_PLAIN[kind]}" for kind, count in CLUSTERS]
    head = ("network", "split", "error", *clusters, "MB moved", "planning", "answer")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        first, *_ = row["clusters"]
        longest_s = max(cluster["search_cpu_s"] for cluster in row["clusters"])
        error = row["max_rel_error"]
        cells = [
            row["network"],
            f"{row['split_share']:.3f}",
            f"{error:.1e}" if error else "0",
            *(f"{cluster['speedup']:.2f}" for cluster in row["clusters"]),
            f"{first['moved_bytes'] * 1e-6:.1f}",
            f"{longest_s:.1f} s",
            "boxes" if row["boxes"] else "raw",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def lab_table(models: Mapping[str, Any]) -> str:
    """Markdown: a row for each network, with its raw output and with its likely boxes."""
    lines = [
        "| network | one device | together | speed-up | predicted | likely boxes | speed-up |",
        "|---" * 7 + "|",
    ]
    for name, measured in models.items():
        raw, boxes = measured["strategies"]["auto"], measured["strategies"]["auto+boxes"]
        cells = [
            name,
            f"{measured['baseline']['latency_s']:.2f} s",
            f"{raw['latency_s']:.2f} s",
            f"{raw['speedup']:.2f}",
            f"{raw['prediction_error']:+.0%}",
        ]
        has_boxes = boxes["bytes"]["gather"] < raw["bytes"]["gather"]
        cells += (
            [f"{boxes['latency_s']:.2f} s", f"{boxes['speedup']:.2f}"] if has_boxes else [""] * 2
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    speeds = "  ".join(
        f"{cluster['devices']} x {cluster['preset']} {cluster['speedup']:.2f}"
        for cluster in row["clusters"]
    )
    error = f"  {row['max_rel_error']:.1e}" if "ok" in row else ""
    return f"{row['network']:30} {row['split_share']:.3f}{error}  {speeds}"


if __name__ == "__main__":
    raise SystemExit(main())
