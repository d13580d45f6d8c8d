"""Ours beside the published value, in numbers and in tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def percent(ours: float, published: float | None) -> float | None:
    """How far ours is from the published value; None where nothing was published."""
    return None if published is None else digits(100 * (ours / published - 1))


def digits(value: float) -> float:
    """Four significant digits: more than anybody read off a figure."""
    return float(f"{value:.4g}")


def span(values: Iterable[float]) -> tuple[float, float]:
    """The least and the most."""
    found = list(values)
    return digits(min(found)), digits(max(found))


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Rows as lines; `columns` maps a row's keys to headings."""
    cells = [list(columns.values())]
    cells += [[text(row.get(key)) for key in columns] for row in rows]
    widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    left = [not any(_is_number(row.get(key)) for row in rows) for key in columns]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in cells
    )


def text(value: Any) -> str:
    """A cell: numbers short, nothing for None."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case list() | tuple():
            return ", ".join(text(item) for item in value)
        case _:
            return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def duration(seconds: float) -> str:
    """Seconds, or milliseconds below one."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def signed(value: float | None) -> str:
    """A deviation in percent, with its sign."""
    return "" if value is None else f"{value:+.0f} %"
