"""Every measure against the horizon, as one SVG picture: a row of panels for each environment."""

import math
from collections.abc import Iterable, Sequence
from html import escape

from rl.credit_bench.report import COLUMNS, ByHorizon, Curves

COLORS = (
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#ff7f0e",
    "#9467bd",
    "#8c564b",
    "#17becf",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
)
WIDTH, HEIGHT = 220, 170
"""Of a panel, pixels."""
LEFT, TOP, RIGHT, BOTTOM = 44, 26, 8, 24
"""Of a panel's frame: room for numbers and the title."""
LINE = 18
"""Height of a line of the legend, pixels."""

Point = tuple[float, float]


def draw(curves: Curves) -> str:
    """Return the picture: both axes logarithmic, values at or below 0 left out."""
    names = list(dict.fromkeys(name for estimators in curves.values() for name in estimators))
    parts: list[str] = []
    for row, (environment, estimators) in enumerate(curves.items()):
        for column, measure in enumerate(COLUMNS):
            panel = {name: _points(estimators.get(name, {}).get(measure, {})) for name in names}
            origin = (column * WIDTH, row * HEIGHT)
            parts += _panel(origin, f"{environment}: {measure}", list(panel.values()))
    below = len(curves) * HEIGHT
    for place, name in enumerate(names):
        y = below + LINE * (place + 1)
        parts.append(f'<rect x="{LEFT}" y="{y - 8}" width="24" height="3" {_fill(place)}/>')
        parts.append(_text(LEFT + 32, y, name, "start"))
    size = f'width="{len(COLUMNS) * WIDTH}" height="{below + LINE * (len(names) + 1)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="10">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _points(curve: ByHorizon) -> list[Point]:
    return [
        (math.log10(horizon), math.log10(value))
        for horizon, value in sorted(curve.items())
        if value is not None and 0 < value < math.inf
    ]


def _panel(origin: Point, title: str, lines: Sequence[Sequence[Point]]) -> Iterable[str]:
    x, y = origin
    yield _text(x + LEFT, y + TOP - 8, title, "start")
    frame = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)
    yield (
        f'<rect x="{x + LEFT}" y="{y + TOP}" width="{frame[0]}" height="{frame[1]}" fill="none" '
        'stroke="#999"/>'
    )
    everything = [point for line in lines for point in line]
    if not everything:
        return
    low_x, high_x = _bounds(point[0] for point in everything)
    low_y, high_y = _bounds(point[1] for point in everything)

    def place(point: Point) -> Point:
        right = x + LEFT + (point[0] - low_x) / (high_x - low_x) * frame[0]
        return right, y + TOP + (high_y - point[1]) / (high_y - low_y) * frame[1]

    for tick in sorted({point[0] for point in everything}):
        yield _text(place((tick, 0))[0], y + HEIGHT - 10, f"{10**tick:.0f}", "middle")
    for tick in (low_y, (low_y + high_y) / 2, high_y):
        yield _text(x + LEFT - 4, place((0, tick))[1] + 3, f"{10**tick:.2g}", "end")
    for number, line in enumerate(lines):
        path = " ".join(f"{right:.1f},{down:.1f}" for right, down in map(place, line))
        color = COLORS[number % len(COLORS)]
        dash = ' stroke-dasharray="4 3"' if number >= len(COLORS) else ""
        yield f'<polyline points="{path}" fill="none" stroke="{color}"{dash}/>'


def _bounds(values: Iterable[float]) -> tuple[float, float]:
    """Return the ends of an axis, a little outside of the values."""
    numbers = list(values)
    margin = 0.05 * (max(numbers) - min(numbers)) or 0.05
    return min(numbers) - margin, max(numbers) + margin


def _fill(place: int) -> str:
    return f'fill="{COLORS[place % len(COLORS)]}"'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
