"""The papers' tables and figures, recomputed beside the published values.

python -m benchmarks.paper fig7 --json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.fig7 import fig7
from benchmarks.report import emit


def fig7_text(result: Mapping[str, Any]) -> str:
    """The figure as a table."""
    lines = [
        f"AOFL, Figure 7: {result['model']}, unsplit {result['unsplit_gflop']:.2f} GFLOP",
        f"{'grid':>6} {'GFLOP':>8} {'overhead %':>11} {'published':>10} {'MB':>8}",
    ]
    for row in result["rows"]:
        published = row["published_overhead"] or ""
        lines.append(
            f"{row['grid']:>6} {row['total_gflop']:8.2f} {row['overhead']:11.1f} {published:>10} "
            f"{row['communication_mb']:8.3f}"
        )
    for name, each in result["changes_percent"].items():
        lines.append(f"{name}: {each['ours']:.1f} % (published {each['published']} %)")
    return "\n".join(lines)


Table = tuple[Callable[[], dict[str, Any]], Callable[[Mapping[str, Any]], str]]
TABLES: Mapping[str, Table] = {"fig7": (fig7, fig7_text)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the chosen tables, all by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    chosen = parser.parse_args(arguments)
    for name in chosen.tables:
        if name not in TABLES:
            parser.error(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    names = chosen.tables or list(TABLES)
    results = {name: TABLES[name][0]() for name in names}
    text = "\n\n".join(TABLES[name][1](results[name]) for name in names)
    emit(results[names[0]] if len(names) == 1 else results, chosen.json, text)


if __name__ == "__main__":
    main()
