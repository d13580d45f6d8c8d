"""Lines over numbers of devices, as SVG without dependencies."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from coordinator.serving.common.plan_picture import COLOURS

Points = Sequence[tuple[int, float]]

_WIDTH, _HEIGHT = 560.0, 360.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 130.0, 44.0, 46.0
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.s{font-size:10px;fill:#555}"
    ".t{font-size:15px;font-weight:600}"
)
# When all colours are used, dashes tell lines apart.
_DASHES = ("", "6 3", "2 3")
_MOST_TICKS = 10


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values to pixels."""

    most_x: int
    most_y: float

    def x(self, value: float) -> float:
        span = max(1, self.most_x - 1)
        return _LEFT + (value - 1) / span * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.most_y * (_HEIGHT - _TOP - _BOTTOM)


def speedup_svg(title: str, lines: Mapping[str, Points]) -> str:
    """Speed-up against one device, over numbers of devices. The dashed grey line is the ideal,
    linear speed-up.
    """
    points = [point for line in lines.values() for point in line]
    scale = _Scale(
        max((x for x, _ in points), default=1), math.ceil(max((1.0, *(y for _, y in points))))
    )
    parts = [f'<text class="t" x="20" y="24">{escape(title)}</text>', *_axes(scale)]
    for index, (name, line) in enumerate(lines.items()):
        parts += _line(scale, name, line, index)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" '
        f'width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}"><style>{_STYLE}</style>'
    )
    return "\n".join((head, *parts, "</svg>")) + "\n"


def _axes(scale: _Scale) -> list[str]:
    left, right = _LEFT, _WIDTH - _RIGHT
    bottom = scale.y(0)
    parts = [f'<path d="M{left} {_TOP}V{bottom}H{right}" fill="none" stroke="#555"/>']
    parts += [
        f'<text class="s" x="{scale.x(x):.1f}" y="{bottom + 16}" text-anchor="middle">{x}</text>'
        for x in range(1, scale.most_x + 1, 1 + scale.most_x // _MOST_TICKS)
    ]
    for y in range(0, int(scale.most_y) + 1, 1 + int(scale.most_y) // _MOST_TICKS):
        at = scale.y(y)
        parts.append(f'<path d="M{left} {at:.1f}H{right}" stroke="#eee"/>')
        parts.append(
            f'<text class="s" x="{left - 8}" y="{at + 3:.1f}" text-anchor="end">{y}</text>'
        )
    most = min(float(scale.most_x), scale.most_y)
    parts.append(
        f'<path d="M{scale.x(1):.1f} {scale.y(1):.1f}L{scale.x(most):.1f} {scale.y(most):.1f}" '
        'stroke="#999" stroke-dasharray="3 3"/>'
    )
    middle = (left + right) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">devices</text>')
    parts.append(f'<text class="s" x="{left}" y="{_TOP - 6}">times as fast as one device</text>')
    return parts


def _line(scale: _Scale, name: str, line: Points, index: int) -> list[str]:
    colour = COLOURS[index % len(COLOURS)]
    dash = _DASHES[index // len(COLOURS) % len(_DASHES)]
    path = "L".join(f"{scale.x(x):.1f} {scale.y(y):.1f}" for x, y in line)
    at = _TOP + 18 * index
    parts = [
        f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{dash}"/>'
    ]
    for x, y in line:
        parts.append(
            f'<circle cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="3" fill="{colour}">'
            f"<title>{escape(name)}: {y:.2f} on {x}</title></circle>"
        )
    right = _WIDTH - _RIGHT + 16
    parts.append(
        f'<path d="M{right} {at}h18" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
    )
    parts.append(f'<text x="{right + 24}" y="{at + 4}">{escape(name)}</text>')
    return parts
