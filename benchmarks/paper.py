"""The papers' tables and figures, recomputed beside the published values.

python -m benchmarks.paper [TABLE ...] [--json] [-o FILE]

A FILE that ends with .svg gets the speed-up curves of fig10 and fig13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.compare import Row, table
from benchmarks.curves import speedups_svg
from benchmarks.fig7 import fig7
from benchmarks.fig9 import fig9, fig9_text
from benchmarks.fig10_13 import fig10, fig13, speedups_text
from benchmarks.fig11 import fig11, fig11_text
from benchmarks.meanings import meanings, meanings_text
from benchmarks.report import command_line, emit
from benchmarks.table2 import table2, table2_text
from benchmarks.tables_search import (
    deepa_table_2,
    deepa_table_3,
    jia_table_3,
    soybean_section_2_2,
)

Result = dict[str, Any]
Table = tuple[Callable[[], Result], Callable[[Mapping[str, Any]], str]]


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
    for name, change in result["changes_percent"].items():
        lines.append(f"{name}: {change['ours']:.1f} % (published {change['published']} %)")
    return "\n".join(lines)


def deepa() -> Result:
    """Both tables of costs."""
    return {"table_2": deepa_table_2(), "table_3": deepa_table_3()}


def deepa_text(result: Mapping[str, Any]) -> str:
    """A line per configuration."""
    return "\n\n".join(
        f"DeePa, Table {name[-1]}: {what}\n{_every_column(result[name])}"
        for name, what in (
            ("table_2", "the first fully connected layer of AlexNet"),
            ("table_3", "the last three convolutions of VGG-16"),
        )
    )


def _rows(make: Callable[[], list[Row]]) -> Callable[[], Result]:
    return lambda: {"rows": make()}


def _rows_text(title: str, result: Mapping[str, Any]) -> str:
    return f"{title}\n{_every_column(result['rows'])}"


def _every_column(rows: Sequence[Row]) -> str:
    keys = dict.fromkeys(key for row in rows for key in row if key != "planner_notes")
    return table(rows, {key: key.replace("_", " ") for key in keys})


TABLES: Mapping[str, Table] = {
    "fig7": (fig7, fig7_text),
    "fig9": (fig9, fig9_text),
    "fig10": (fig10, partial(speedups_text, "AOFL, Figure 10: speed-up over one device")),
    "fig11": (fig11, fig11_text),
    "fig12": (table2, table2_text),
    "fig13": (fig13, partial(speedups_text, "AOFL, Figure 13b: ResNet-50 over one device")),
    "table2": (table2, table2_text),
    "meanings": (meanings, meanings_text),
    "jia": (
        _rows(jia_table_3),
        partial(_rows_text, "Jia et al., Table 3: elimination on 4 devices"),
    ),
    "deepa": (deepa, deepa_text),
    "soybean": (
        _rows(soybean_section_2_2),
        partial(_rows_text, "SOYBEAN, section 2.2: MB exchanged in a step of 5 layers of 300"),
    ),
}
# Figure 12 draws Table 2.
ALL = tuple(name for name in TABLES if name != "fig12")
CURVES = ("fig10", "fig13")


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the chosen tables, all by default."""
    parser = command_line(__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}, all")
    chosen = parser.parse_args(arguments)
    for name in chosen.tables:
        if name not in TABLES and name != "all":
            parser.error(f"there is no table {name!r}; there are {', '.join(TABLES)}, all")
    names = list(ALL) if "all" in chosen.tables or not chosen.tables else chosen.tables
    output: Path | None = chosen.output
    draws = output is not None and output.suffix == ".svg"
    if draws:
        names = [name for name in names if name in CURVES]
        if not names:
            parser.error(f"there are curves of {' and '.join(CURVES)} only")
    results = {name: TABLES[name][0]() for name in names}
    if output is not None and draws:
        output.write_text(speedups_svg(list(results.values())), encoding="utf-8")
        return
    text = "\n\n".join(TABLES[name][1](result) for name, result in results.items())
    emit(next(iter(results.values())) if len(results) == 1 else results, chosen, text)


if __name__ == "__main__":
    main()
