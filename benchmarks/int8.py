"""An int8 ResNet-50 beside the float one: bytes that travel, and whether the answer is the same.

    python -m benchmarks.int8 [--json] [--strategies lw,aofl,halo] [--workers 4] [--signed]

ResNet-50 is prepared and quantised by onnxruntime's own tools (QDQ, a scale per channel of weights,
activations of unsigned 8 bits, or with `--signed` of signed ones), and both run through `imbrex
demo`: real processes, bytes as counted by the workers. `lw` cuts both at the same places; the
others cut the int8 network more often, as its cuts cost less. Both answers are compared with the
same model's whole in plain onnxruntime with its default options.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Sequence
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
from models.catalogue import load
from models.graph import Graph, load_graph
from models.reference import random_inputs

NETWORK = "resnet50"
STRATEGIES = ("lw", "aofl", "halo")
MOST = 0.3


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
    written, prepared, done = (folder / f"{each}.onnx" for each in ("float", "prepared", "int8"))
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


def compare(folder: Path, strategy: str, workers: int) -> dict[str, Any]:
    """One strategy's row: the demo of both models in `folder`."""
    row: dict[str, Any] = {"strategy": strategy}
    for kind in ("float", "int8"):
        path = str(folder / f"{kind}.onnx")
        found = imbrex("demo", "--model", path, "--workers", str(workers), "--strategy", strategy)
        if "error" in found:
            return row | {"error": f"{kind}: {found['error']}"}
        moved = {
            "bytes": sum(found["bytes"].values()),
            "planned_bytes": sum(found["planned_bytes"].values()),
        }
        row[kind] = moved | {key: found[key] for key in ("max_rel_error", "latency_s", "speedup")}
    row["bytes_ratio"] = row["int8"]["bytes"] / row["float"]["bytes"]
    return row


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['strategy']:12} {row['error']}"
    mega = [row[kind]["bytes"] / 1e6 for kind in ("float", "int8")]
    return (
        f"{row['strategy']:12} {mega[0]:7.2f} MB  {mega[1]:7.2f} MB  {row['bytes_ratio']:.3f}x  "
        f"error {row['int8']['max_rel_error']:.1e}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; fails where an answer differs, or no strategy saves enough."""
    parser = command_line(__doc__)
    parser.add_argument("--signed", action="store_true")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--strategies", type=lambda text: text.split(","), default=STRATEGIES)
    given = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        quantised(load(NETWORK).proto, folder, signed=given.signed)
        for strategy in given.strategies:
            rows.append(compare(folder, strategy, given.workers))
            print(_line(rows[-1]), file=sys.stderr, flush=True)
    done = [row for row in rows if "error" not in row]
    same = len(done) == len(rows) and all(row["int8"]["max_rel_error"] == 0.0 for row in done)
    least = min((row["bytes_ratio"] for row in done), default=1.0)
    result = {"signed": given.signed, "workers": given.workers, "rows": rows}
    emit(result, given, f"least {least:.3f}x, {'the same' if same else 'other'} answers")
    return 0 if same and least <= MOST else 1


if __name__ == "__main__":
    raise SystemExit(main())
