"""A small SVG of curves over a common axis, without a plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 260, 56, 34, 30
COLOURS = ("#2563eb", "#dc2626", "#059669")


def svg(title: str, x_label: str, x: Sequence[float], curves: Mapping[str, Sequence[float]]) -> str:
    """One line per curve, from zero up; every curve has a value for each x."""
    most_x, most_y = max(x), 1.15 * max(map(max, curves.values()))

    def place(across: float, up: float) -> str:
        return (
            f"{LEFT + across / most_x * (WIDTH - LEFT - 12):.1f},"
            f"{HEIGHT - BOTTOM - up / most_y * (HEIGHT - BOTTOM - TOP):.1f}"
        )

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="11"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-size="13">{escape(title)}</text>',
        f'<text x="{WIDTH - 12}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_label)}</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = most_y * share / 1.15
        start, end = place(0, value), place(most_x, value)
        y = start.partition(",")[2]
        lines.append(f'<polyline points="{start} {end}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y}" text-anchor="end">{value:.0f}</text>')
        at = place(most_x * share, 0).partition(",")[0]
        lines.append(f'<text x="{at}" y="{HEIGHT - 18}" text-anchor="middle">{most_x * share:.3g}</text>')
    for number, (name, values) in enumerate(curves.items()):
        points = " ".join(place(across, up) for across, up in zip(x, values, strict=True))
        colour = COLOURS[number]
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        lines.append(f'<text x="{LEFT + 8 + 190 * number}" y="{TOP + 4}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
