"""The pieces of pictures as SVG: rectangles, texts of known width, and arrows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.sax.saxutils import escape

FONT = "Helvetica Neue, Helvetica, Arial, DejaVu Sans, sans-serif"
INK, MUTED, LINE, EDGE, PAPER, LATE = (
    "#1f2733", "#667085", "#4b5768", "#98a2b3", "#ffffff", "#b4530a",
)  # fmt: skip

Point = tuple[float, float]


class Rect(NamedTuple):
    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


@dataclass(frozen=True)
class Text:
    """A line of text with its baseline at `y`. Its start, middle or end (`anchor`) is at `x`."""

    text: str
    x: float
    y: float
    size: float = 11.0
    color: str = INK
    anchor: str = "start"
    bold: bool = False

    def svg(self) -> str:
        weight = ' font-weight="600"' if self.bold else ""
        return (
            f'<text x="{self.x:.1f}" y="{self.y:.1f}" font-size="{self.size:g}" '
            f'fill="{self.color}" text-anchor="{self.anchor}"{weight}>{escape(self.text)}</text>'
        )


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Estimate the width of a text in the widest of the fonts that may show it."""
    narrow, wide = "iljtfrI.,:;'|!()[]` -/", "mwMW@%≥≤"
    ems = (0.39 if c in narrow else 0.92 if c in wide else 0.68 if c.isupper() else 0.62
           for c in text)  # fmt: skip
    return sum(ems) * size * (1.1 if bold else 1.0)


def rounded(rect: Rect, radius: float, fill: str, edge: str, shift: float = 0.0) -> str:
    return (
        f'<rect x="{rect.left + shift:.1f}" y="{rect.top - shift:.1f}" width="{rect.width:.1f}" '
        f'height="{rect.height:.1f}" rx="{radius:g}" fill="{fill}" stroke="{edge}"/>'
    )


def line(points: Sequence[Point], width: float, dashed: bool = False) -> list[str]:
    """Draw an arrow with rounded corners, over a wider white line that separates it from others."""
    (x0, y0), (x, y) = points[-2], points[-1]
    far = math.hypot(x - x0, y - y0)
    dx, dy = (x - x0) / far, (y - y0) / far
    long, half = 5 + 1.7 * width, 2.5 + 1.0 * width
    base = (x - dx * long, y - dy * long)
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for before, corner, after in zip(points, points[1:-1], [*points[2:-1], base], strict=False):
        (ax, ay), (bx, by) = (_toward(corner, end, 10) for end in (before, after))
        path += f"L{ax:.1f} {ay:.1f}Q{corner[0]:.1f} {corner[1]:.1f} {bx:.1f} {by:.1f}"
    path += f"L{base[0] + dx:.1f} {base[1] + dy:.1f}"
    dash = ' stroke-dasharray="7 4"' if dashed else ""
    strokes = [
        f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{stroke:.2f}"{style}/>'
        for color, stroke, style in ((PAPER, width + 5, ""), (LINE, width, dash))
    ]
    sides = [(base[0] - dy * s, base[1] + dx * s) for s in (half, -half)]
    head = "L".join(f"{px:.1f} {py:.1f}" for px, py in [(x, y), *sides])
    return [*strokes, f'<path d="M{head}Z" fill="{LINE}"/>']


def _toward(start: Point, end: Point, by: float) -> Point:
    """Return the point at distance `by` from `start` toward `end`, at most halfway."""
    far = math.hypot(end[0] - start[0], end[1] - start[1])
    part = min(by, far / 2) / far
    return start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part
