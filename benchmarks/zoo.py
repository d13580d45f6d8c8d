"""Every network, cut and run: what share of it runs split, and how exact the answer is.

    python -m benchmarks.zoo [--json] [--networks vgg16,light_vgg19] [--grids 2x2,1x3,4x1]
                             [--demo]

Runs `imbrex check` on every network of the catalogue and on the nine of the `onnx` package's
backend tests, with every grid; with `--demo` also `imbrex demo --workers 3`. Each run is a process
of its own, as a user would start it. Without `--demo` the whole takes about half an hour on two
cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx

from benchmarks import light
from benchmarks.report import command_line, emit
from models.catalogue import catalogue

GRIDS = ("2x2", "1x3", "4x1")
LEAST_SHARE = 0.9
WORKERS = 3
TIMEOUT_S = 1800.0

Row = dict[str, Any]


def networks() -> tuple[str, ...]:
    """Every name that the benchmark knows."""
    return (*light.NAMES, *catalogue.names())


@contextmanager
def model_of(name: str) -> Iterator[str]:
    """What the command line calls the network: a catalogue name, or a file while it lasts."""
    if name in catalogue.names():
        yield name
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        onnx.save(light.light_network(name), path)
        yield str(path)


def measure(name: str, grids: Sequence[str], *, demo: bool) -> Row:
    """One network's row of the table."""
    with model_of(name) as model:
        checks = {grid: imbrex("check", model, "--grid", grid) for grid in grids}
        ran = imbrex("demo", "--model", model, "--workers", str(WORKERS)) if demo else None
    row: Row = {"network": name, "checks": {}}
    refused: Counter[str] = Counter()
    for grid, found in checks.items():
        row["checks"][grid] = found if "error" in found else _check_row(found)
        # Every grid has the same refusals.
        refused = Counter(refusal["op"] for refusal in found.get("refusals", ()))
    row["whole"] = dict(refused)
    if ran is not None:
        row["demo"] = ran if "error" in ran else _demo_row(ran)
    row["ok"] = all(_fine(check) for check in row["checks"].values()) and _fine(row.get("demo", {}))
    return row


def _check_row(found: Row) -> Row:
    return {key: found[key] for key in ("partitioned_flop_share", "max_rel_error", "blocks", "ok")}


def _demo_row(found: Row) -> Row:
    keys = ("strategy", "max_rel_error", "speedup", "latency_s", "single_device_latency_s")
    return {key: found[key] for key in keys} | {"ok": found["exit"] == 0}


def _fine(found: Row) -> bool:
    share = found.get("partitioned_flop_share", 1.0)
    return "error" not in found and found.get("ok", True) and share >= LEAST_SHARE


def imbrex(command: str, *arguments: str) -> Row:
    """A command's JSON object; an error is one too."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "imbrex", command, *arguments, "--json"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {TIMEOUT_S:g} s"}
    try:
        found: Row = json.loads(done.stdout) | {"exit": done.returncode}
    except ValueError:
        return {"error": done.stderr.strip()[-500:] or f"exit code {done.returncode}"}
    return found


def _line(row: Row) -> str:
    parts = [f"{row['network']:20} {'ok' if row['ok'] else 'NOT OK':7}"]
    for grid, found in row["checks"].items():
        if "error" in found:
            parts.append(f"{grid} {found['error']}")
        else:
            share, error = found["partitioned_flop_share"], found["max_rel_error"]
            parts.append(f"{grid} {share:6.1%} {error:.1e} ")
    demo = row.get("demo")
    if demo is not None and "error" in demo:
        parts.append(f"demo {demo['error']}")
    elif demo is not None:
        parts.append(f"demo {demo['strategy']} {demo['speedup']:.2f}x {demo['max_rel_error']:.1e} ")
    whole = ", ".join(f"{count} {op}" for op, count in row["whole"].items())
    return " ".join([*parts, f"whole: {whole}" if whole else ""]).rstrip()


def _chosen(text: str, known: Sequence[str]) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; fails if a network is not ok."""
    parser = command_line(__doc__)
    parser.add_argument("--demo", action="store_true")
    parser.add_argument(
        "--networks", type=lambda text: _chosen(text, networks()), default=list(networks())
    )
    parser.add_argument("--grids", type=lambda text: text.split(","), default=list(GRIDS))
    given = parser.parse_args(arguments)
    rows = []
    for name in given.networks:
        rows.append(measure(name, given.grids, demo=given.demo))
        print(_line(rows[-1]), file=sys.stderr, flush=True)
    ok = sum(row["ok"] for row in rows)
    emit({"networks": rows}, given, f"{ok} of {len(rows)} networks are ok")
    return 0 if ok == len(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
