"""How much slower kernels are on tiles than on whole maps: GFLOP/s of both, in one thread.

    python -m benchmarks.tiles --json

Every block between two adjacent boundaries of a network is timed whole, and as the strip of one of
several devices: with onnxruntime's blocked layout for x86-64, and as it computes on Arm. Strips of
residual units compute the rows of their halos twice, which counts as work. The rest of a strip's
additional time is lost in registers that are not full, in weights that are read for fewer rows,
and, with the blocked layout, in converting maps at both ends of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.costs import fused_tile, run_s
from benchmarks.report import command_line, emit
from models.catalogue import catalogue
from models.cut.program import BlobSource
from models.cut.tiles import even_spans, map_size
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from models.tensors.boxes import Span

NETWORKS = ("vgg16-256-conv", "yolov2", "resnet50")
DEVICES = 8
LAYOUTS = {"blocked": False, "as on Arm": True}


def measure(name: str, devices: int) -> dict[str, Any]:
    """Of one network: GFLOP/s by layout, altogether and block by block."""
    loaded = catalogue.load(name)
    network = divide(load_graph(loaded.proto, loaded.name))
    found: dict[str, Any] = {}
    for layout, as_on_arm in LAYOUTS.items():
        rows = [
            _block(network, start, stop, devices, as_on_arm=as_on_arm)
            for start, stop in zip(network.marks, network.marks[1:], strict=False)
            if network.is_divisible(start, stop)
        ]
        flop = sum(row["gflop"] for row in rows)
        # As if every device computed at the rate of its strip.
        whole_s, strips_s = (
            sum(row["gflop"] / row[which] for row in rows)
            for which in ("whole_gflops", "strip_gflops")
        )
        found[layout] = {
            "whole_gflops": round(flop / whole_s, 1),
            "strip_gflops": round(flop / strips_s, 1),
            "slower": round(strips_s / whole_s, 3),
            "blocks": rows,
        }
    return found


def _block(
    network: Network, start: int, stop: int, devices: int, *, as_on_arm: bool
) -> dict[str, Any]:
    height, width = map_size(network, start, stop)
    strips = [rows for rows in even_spans(height, devices) if len(rows)]
    row: dict[str, Any] = {"unit": start, "map": [height, width], "rows": len(strips[0])}
    for which, rows in (("whole", Span(0, height)), ("strip", strips[len(strips) // 2])):
        blobs = BlobSource()
        tile = fused_tile(network, start, stop, rows, blobs)
        flop = sum(work.flop for work in tile.work)
        if which == "whole":
            row["gflop"] = flop * 1e-9
        seconds = run_s(tile.program, tile.inputs, blobs, as_on_arm=as_on_arm)
        row[f"{which}_gflops"] = round(flop * 1e-9 / seconds, 1)
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = command_line(__doc__)
    parser.add_argument("--models", default=",".join(NETWORKS))
    parser.add_argument("--devices", type=int, default=DEVICES)
    chosen = parser.parse_args(arguments)
    result = {name: measure(name, chosen.devices) for name in chosen.models.split(",")}
    lines = [
        f"{name}, {layout}: {row['whole_gflops']:.0f} GFLOP/s whole, {row['strip_gflops']:.0f} "
        f"as one of {chosen.devices} strips ({row['slower']:.2f} times as slow)"
        for name, layouts in result.items()
        for layout, row in layouts.items()
    ]
    emit(result, chosen, "\n".join(lines))


if __name__ == "__main__":
    main()
