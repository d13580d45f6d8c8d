"""Speed-up curves as SVG: ours as lines, the published as dots [AOFL, Figures 10 and 13b]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.compare import Row
from benchmarks.fig10_13 import CLOCKS

# Okabe and Ito's colours, which people with any kind of colour vision tell apart.
_COLOURS = ("#0072B2", "#D55E00")
_WIDTH, _HEIGHT, _MARGIN, _TITLE = 260, 200, 34, 22
_STYLE = "text{font:11px system-ui,sans-serif;fill:#222}.t{font-size:12px;font-weight:600}"


def speedups_svg(figures: Sequence[Mapping[str, Any]]) -> str:
    """A panel per calibration and network; solid is AOFL's own cost, dashed is simulated."""
    panels: dict[tuple[str, str], list[Row]] = {}
    for figure in figures:
        for curve in figure["curves"]:
            if curve["strategy"] == "aofl":
                panels.setdefault((curve["calibration"], curve["model"]), []).append(curve)
    columns = max(1, len(panels) // len({calibration for calibration, _ in panels}))
    counts = figures[0]["devices"]
    drawn = []
    # Figures come one after the other: order by calibration, so that each has a line of its own.
    for k, ((calibration, model), curves) in enumerate(sorted(panels.items(), key=lambda p: p[0])):
        x, y = k % columns * _WIDTH, k // columns * (_HEIGHT + _TITLE)
        body = _panel(f"({calibration}) {model}", curves, counts)
        drawn.append(f'<g transform="translate({x},{y})">{body}</g>')
    width = columns * _WIDTH
    height = -(-len(panels) // columns) * (_HEIGHT + _TITLE) + 24
    legend = _label(
        f"{_MARGIN},{height - 8}",
        "AOFL over one device: solid its own cost, dashed simulated, dots published;",
    ) + "".join(
        _label(f"{_MARGIN + 430 + 60 * k},{height - 8}", f"{ghz:g} GHz", colour=colour)
        for k, (ghz, colour) in enumerate(zip(CLOCKS, _COLOURS, strict=True))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(drawn)}{legend}</svg>\n'
    )


def _panel(title: str, curves: Sequence[Row], counts: Sequence[int]) -> str:
    most = max(counts)

    def place(count: float, speedup: float) -> str:
        x = _MARGIN + (count - 1) / max(1, most - 1) * (_WIDTH - 2 * _MARGIN)
        y = _TITLE + (1 - (speedup - 0.5) / 5) * (_HEIGHT - _MARGIN)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<text class="t" x="{_MARGIN}" y="14">{escape(title)}</text>']
    for level in range(1, 6):
        left, right = place(1, level), place(most, level)
        parts.append(f'<polyline points="{left} {right}" stroke="#ddd" fill="none"/>')
        parts.append(_label(left, str(level), dx=-14, dy=4))
    parts += [_label(place(count, 0.5), str(count), dx=-3, dy=12) for count in counts]
    for colour, curve in zip(_COLOURS, curves, strict=True):
        for measure, dash in (("cost", ""), ("simulated", ' stroke-dasharray="4 3"')):
            points = " ".join(place(n, v) for n, v in zip(counts, curve[measure], strict=True))
            parts.append(
                f'<polyline points="{points}" stroke="{colour}" stroke-width="1.6" '
                f'fill="none"{dash}/>'
            )
        for count, value in curve["published"].items():
            x, _, y = place(int(count), value).partition(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>')
    return "".join(parts)


def _label(at: str, words: str, *, dx: float = 0, dy: float = 0, colour: str = "#222") -> str:
    x, _, y = at.partition(",")
    return (
        f'<text x="{float(x) + dx:.1f}" y="{float(y) + dy:.1f}" style="fill:{colour}">'
        f"{escape(words)}</text>"
    )
