"""Speed-ups as bars, a group for each model, as SVG without dependencies. A line across a bar is
what was predicted; the dashed line is as many times as there are devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from coordinator.serving.common.plan_picture import COLOURS

_BAR, _GAP, _HEIGHT = 26.0, 30.0, 340.0
_LEFT, _TOP, _BOTTOM = 48.0, 70.0, 40.0
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.s{font-size:10px;fill:#555}"
    ".t{font-size:15px;font-weight:600}"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """How many times as fast as one device: measured, and predicted."""

    measured: float
    predicted: float


def bars_svg(title: str, devices: int, groups: Mapping[str, Mapping[str, Bar]]) -> str:
    """Groups by model, bars by strategy; a strategy has one colour everywhere."""
    strategies = list(dict.fromkeys(name for group in groups.values() for name in group))
    colours = {name: COLOURS[k % len(COLOURS)] for k, name in enumerate(strategies)}
    values = [max(bar.measured, bar.predicted) for g in groups.values() for bar in g.values()]
    most = math.ceil(max(float(devices), *values)) if values else float(devices)
    width = _LEFT + sum(_GAP + _BAR * len(group) for group in groups.values()) + _GAP
    bottom = _HEIGHT - _BOTTOM

    def y(value: float) -> float:
        return bottom - value / most * (bottom - _TOP)

    parts = [f'<text class="t" x="20" y="24">{escape(title)}</text>']
    for k, name in enumerate(strategies):
        x = _LEFT + 74 * k
        parts.append(f'<rect x="{x:.0f}" y="38" width="12" height="12" fill="{colours[name]}"/>')
        parts.append(f'<text x="{x + 17:.0f}" y="48">{escape(name)}</text>')
    width = max(width, _LEFT + 74 * len(strategies))
    for value in range(0, int(most) + 1):
        parts.append(f'<path d="M{_LEFT} {y(value):.1f}H{width:.0f}" stroke="#eee"/>')
        parts.append(
            f'<text class="s" x="{_LEFT - 6}" y="{y(value) + 3:.1f}" text-anchor="end">'
            f"{value}</text>"
        )
    dashed = 'stroke="#999" stroke-dasharray="4 3"'
    parts.append(f'<path d="M{_LEFT} {y(devices):.1f}H{width:.0f}" {dashed}/>')
    x = _LEFT + _GAP
    for model, group in groups.items():
        middle = x + _BAR * len(group) / 2
        parts.append(
            f'<text x="{middle:.0f}" y="{bottom + 20}" text-anchor="middle">{escape(model)}</text>'
        )
        for name, bar in group.items():
            parts += _bar(x, y(bar.measured), bottom, y(bar.predicted), colours[name])
            parts.append(
                f'<text class="s" x="{x + _BAR / 2:.0f}" y="{y(bar.measured) - 4:.1f}" '
                f'text-anchor="middle">{bar.measured:.1f}</text>'
            )
            x += _BAR
        x += _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {_HEIGHT:.0f}" '
        f'width="{width:.0f}" height="{_HEIGHT:.0f}"><style>{_STYLE}</style>'
    )
    return "\n".join((head, *parts, "</svg>")) + "\n"


def _bar(x: float, top: float, bottom: float, predicted: float, colour: str) -> list[str]:
    return [
        f'<rect x="{x + 2:.0f}" y="{top:.1f}" width="{_BAR - 4:.0f}" '
        f'height="{bottom - top:.1f}" fill="{colour}"/>',
        f'<path d="M{x:.0f} {predicted:.1f}h{_BAR:.0f}" stroke="#222" stroke-width="1.5"/>',
    ]
