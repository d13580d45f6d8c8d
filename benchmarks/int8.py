"""An int8 ResNet-50 beside the float one: bytes that travel, and whether the answer is the same.
And how many times as fast whole networks are in eight bits on this machine.

    python -m benchmarks.int8 [--json] [--strategies auto,lw,efl,aofl,halo] [--workers 4] [--signed]

ResNet-50 is prepared and quantised by onnxruntime's own tools (QDQ, a scale per channel of weights,
activations of unsigned 8 bits, or with `--signed` of signed ones). Every strategy plans it for so
many Raspberry Pi 3s on 100 Mbit/s Ethernet, and `imbrex demo --plan` runs it: real processes,
bytes as workers count them. The int8 network runs at the float one's cuts, if they lie between
residual blocks, and at its own: where bytes cost less, planners cut more often. What `auto` moves,
as every demo and coordinator does by default, is judged at its own cuts. Answers are
compared with the same model's whole in plain onnxruntime with its default options. Times of whole
networks are medians of runs in turn, in plain onnxruntime.
"""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from benchmarks.report import command_line, emit
from benchmarks.zoo import imbrex
from coordinator.costs.cluster import Cluster
from coordinator.planning.finish import plan_of_blocks
from coordinator.planning.plan_json import plan_json, save_plan
from coordinator.planning.published import equal_cluster
from coordinator.plans.named import strategy as planner_of
from coordinator.tasks.plan import Plan
from imbrex.demo.demo_cluster import WORKER
from models.catalogue import loading
from models.catalogue.catalogue import load
from models.cut.units import Network
from models.graph.graph import Graph
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, random_inputs
from models.tensors.boxes import Span

NETWORK = "resnet50"
AUTO = "auto"
STRATEGIES = (AUTO, "lw", "efl", "aofl", "halo")
FLOAT, INT8 = "float", "int8"
SAME, OWN = "same_cuts", "own_cuts"
MOST = 0.3
# Of the bytes between devices: 0.25 and what scales take.
MOST_HALO = 0.26
# Whole networks whose times are compared, and how much faster they should be in eight bits on a
# processor with instructions for these.
TIMED = ("resnet50", "yolov8n")
LEAST_SPEEDUP = 1.8
ROUNDS = 21


class OneInput(CalibrationDataReader):  # type: ignore[misc]
    """A seeded random input, once: enough for ranges of a network that nobody has trained."""

    def __init__(self, graph: Graph) -> None:
        self._left = [random_inputs(graph, seed=3)]

    def get_next(self) -> Any:
        """The next sample; None after the last."""
        return self._left.pop() if self._left else None


def quantised(
    model: onnx.ModelProto,
    folder: Path,
    *,
    signed: bool,
    layout: QuantFormat = QuantFormat.QDQ,
) -> onnx.ModelProto:
    """The model with 8-bit weights and activations, as onnxruntime's tools make it. Intermediate
    files go to `folder`.
    """
    graph = load_graph(model, NETWORK)
    logging.getLogger().setLevel(logging.ERROR)
    written, prepared, done = (folder / f"{step}.onnx" for step in ("float", "prepared", "int8"))
    onnx.save(model, written)
    quant_pre_process(written, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        done,
        OneInput(graph),
        quant_format=layout,
        per_channel=layout == QuantFormat.QDQ,
        activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return onnx.load(done)


def timed(name: str, folder: Path, *, signed: bool) -> dict[str, Any]:
    """Milliseconds of a whole network in float and in eight bits, and their ratio."""
    proto = load(name).proto
    feeds = random_inputs(load_graph(proto, name))
    models = [
        WholeModel(model, threads=0) for model in (proto, quantised(proto, folder, signed=signed))
    ]
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for model, taken in zip(models, seconds, strict=True):
            began_s = time.perf_counter()
            model.run(feeds)
            taken.append(time.perf_counter() - began_s)
    float_s, int8_s = map(statistics.median, seconds)
    return {
        "network": name,
        "float_ms": round(1e3 * float_s, 2),
        "int8_ms": round(1e3 * int8_s, 2),
        "speedup": round(float_s / int8_s, 2),
    }


def at_cuts_of(plan: Plan, of: Network, to: Network, cluster: Cluster) -> Plan | None:
    """The plan of a network, for another with the same units: the same tiles of the same maps.
    Where one has summed up the columns already (a mean over the map, in two steps), a tile has all
    columns of the other. None where it cuts within a residual block: units come in another order.
    """
    blocks = []
    for block in plan.blocks:
        names = [side.outputs(block.start, block.stop) for side in (of, to)]
        sizes = [
            [side.shape(n) for n in ns]
            for side, ns in zip((of.graph, to.graph), names, strict=True)
        ]
        alike = len(names[0]) == len(names[1]) == 1 and sizes[0][0][:-1] == sizes[1][0][:-1]
        if not alike:
            return None
        (name,), (other,) = names
        width, columns = (size[0][-1] for size in sizes)
        tiles = []
        for tile in block.tiles:
            box = tile.boxes[name]
            if width != columns:
                box = box.replace(len(box) - 1, Span(0, columns))
            tiles.append(replace(tile, boxes={other: box}))
        blocks.append(replace(block, tiles=tuple(tiles)))
    return plan_of_blocks(plan.strategy, blocks, to, cluster)


def compare(folder: Path, strategy: str, workers: int) -> dict[str, Any]:
    """One strategy's row: the models in `folder`, run by its plans."""
    cluster = equal_cluster(workers, WORKER)
    networks = {
        kind: loading.network_of(load(str(folder / f"{kind}.onnx"))) for kind in (FLOAT, INT8)
    }
    plans = {kind: planner_of(strategy)(network, cluster) for kind, network in networks.items()}
    same = at_cuts_of(plans[FLOAT], networks[FLOAT], networks[INT8], cluster)
    row: dict[str, Any] = {"strategy": strategy}
    for label, kind, plan in (
        (FLOAT, FLOAT, plans[FLOAT]),
        (SAME, INT8, same),
        (OWN, INT8, plans[INT8]),
    ):
        if plan is None:
            continue
        row[label] = _ran(folder, kind, plan, networks[kind], workers)
        if "error" in row[label]:
            return row | {"error": f"{label}: {row[label]['error']}"}
        row[label]["ratio"] = row[label]["bytes"] / row[FLOAT]["bytes"]
        if row[FLOAT]["halo_bytes"]:
            row[label]["halo_ratio"] = row[label]["halo_bytes"] / row[FLOAT]["halo_bytes"]
    return row


def _ran(folder: Path, kind: str, plan: Plan, network: Network, workers: int) -> dict[str, Any]:
    """What a demo that holds this plan says."""
    given = folder / "plan.json"
    given.write_text(save_plan(plan_json(plan, network)))
    model = str(folder / f"{kind}.onnx")
    found = imbrex("demo", "--model", model, "--workers", str(workers), "--plan", str(given))
    if "error" in found:
        return found
    return {
        "bytes": sum(found["bytes"].values()),
        "planned_bytes": sum(found["planned_bytes"].values()),
        "halo_bytes": found["bytes"]["halo"],
        "devices": len(plan.devices),
        "predicted_s": plan.predicted_latency_s,
        **{key: found[key] for key in ("max_rel_error", "latency_s", "speedup")},
    }


def _quantised_runs(row: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(label, row[label]) for label in (SAME, OWN) if label in row]


def _judged(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = row[OWN] if row["strategy"] == AUTO else row.get(SAME, row[OWN])
    return found


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['strategy']:12} {row['error']}"
    parts = [f"{row['strategy']:12} float {row[FLOAT]['bytes'] / 1e6:6.2f} MB"]
    for label, found in _quantised_runs(row):
        parts.append(
            f"{label} {found['bytes'] / 1e6:6.2f} MB {found['ratio']:.3f}x "
            f"error {found['max_rel_error']:.1e}"
        )
    return "  ".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; fails where an answer differs, a strategy doesn't save enough at the
    same cuts (at its own, if there are no such, or if it is `auto`), in all or between devices, or
    a whole network gains too little.
    """
    parser = command_line(__doc__)
    parser.add_argument("--signed", action="store_true")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--strategies", type=lambda text: text.split(","), default=STRATEGIES)
    given = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = [timed(name, folder, signed=given.signed) for name in TIMED]
        for figures in whole:
            print(
                "{network:12} {speedup} times as fast in eight bits".format_map(figures),
                file=sys.stderr,
            )
        quantised(load(NETWORK).proto, folder, signed=given.signed)
        for strategy in given.strategies:
            rows.append(compare(folder, strategy, given.workers))
            print(_line(rows[-1]), file=sys.stderr, flush=True)
    done = [dict(_quantised_runs(row)) for row in rows if "error" not in row]
    errors = [run["max_rel_error"] for runs in done for run in runs.values()]
    same = len(done) == len(rows) and not any(errors)
    most = max((_judged(row)["ratio"] for row in rows if "error" not in row), default=1.0)
    halos = [_judged(row).get("halo_ratio", 0.0) for row in rows if "error" not in row]
    most_halo = max(halos, default=0.0)
    result = {
        "signed": given.signed,
        "workers": given.workers,
        "most": most,
        "most_halo": most_halo,
        "whole": whole,
        "rows": rows,
    }
    answers = "the same answers" if same else f"answers differ by {max(errors, default=1.0):.1e}"
    emit(result, given, f"at most {most:.3f}x, {most_halo:.3f}x between devices, {answers}")
    fast = all(row["speedup"] >= LEAST_SPEEDUP for row in whole)
    return 0 if same and most <= MOST and most_halo <= MOST_HALO and fast else 1


if __name__ == "__main__":
    raise SystemExit(main())
