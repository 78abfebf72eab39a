"""A picture of places and the arrows between them, as SVG for a paper or a web page.

    boxes = PlaceBox("actor"), PlaceBox("learner")
    svg(Drawing("PPO", "64 environments", boxes, (FlowArrow(...),)))

Boxes stand in a row, ordered so that most arrows join neighbours. Arrows between neighbours run in
the gap between them, all others in lanes above the row. An exchange among the replicas of a place
is a loop below its box. So no two labels overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from xml.sax.saxutils import escape

from hocket.report.shapes import (
    EDGE,
    FONT,
    LATE,
    MUTED,
    PAPER,
    Point,
    Rect,
    Text,
    line,
    rounded,
    text_width,
)

ROLES = {
    "env": ("environment", "#e0f3e5", "#2f8f55"),
    "act": ("acting", "#d9f1f3", "#1b8a99"),
    "learn": ("learning", "#dfeafc", "#2e6bcb"),
    "gradient": ("gradient", "#e6e3fb", "#5a4dc2"),
    "replay": ("replay", "#fdf0d2", "#b9820f"),
}
"""Each role's name in the legend, and the fill and edge colors of its pills."""
OTHER = ("other", "#eef0f3", "#7a8493")

MARGIN, PAD, CARD = 28.0, 16.0, 5.0
MIN_BOX, MIN_GAP, MAX_PILLS = 168.0, 96.0, 200.0
HEADER, LANE, LOOP, PILL, FACT, LEGEND = 78.0, 48.0, 54.0, 22.0, 17.0, 44.0
ARROW, DETAIL = 54.0, 13.0


@dataclass(frozen=True)
class PlaceBox:
    """The box of a place. `pills` are pairs (fragment, role), and `facts` pairs (name, value)."""

    name: str
    pills: tuple[tuple[str, str], ...] = ()
    on: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    replicas: int = 1
    note: str = ""
    loop: str = ""
    """The label of the exchange among the replicas; empty if they exchange nothing."""

    @property
    def behind(self) -> float:
        """The distance by which cards stick out behind the box, upward and to the right.

        A place with several replicas is drawn as a stack of two or three cards.
        """
        return CARD * (min(self.replicas, 3) - 1)


@dataclass(frozen=True)
class FlowArrow:
    """An arrow from one box to another: thicker for more bytes, dashed if it is `late`."""

    source: str
    target: str
    nbytes: int
    label: str
    details: tuple[str, ...] = ()
    late: str = ""


@dataclass(frozen=True)
class Drawing:
    """The contents of a picture."""

    title: str
    subtitle: str
    boxes: tuple[PlaceBox, ...]
    arrows: tuple[FlowArrow, ...] = ()


@dataclass
class Canvas:
    """The finished layout. Shapes are drawn first, then texts on top of them."""

    width: float = 0.0
    height: float = 0.0
    cards: dict[str, Rect] = field(default_factory=dict)
    shapes: list[str] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    lines: list[list[Point]] = field(default_factory=list)
    """The corners of every arrow."""


def svg(*drawings: Drawing) -> str:
    """Return pictures, one below the other, as the text of one SVG file."""
    canvases, top = [lay_out(drawing) for drawing in drawings], 0.0
    parts: list[str] = []
    for canvas in canvases:
        drawn = [*canvas.shapes, *(text.svg() for text in canvas.texts)]
        parts += [f'<g transform="translate(0 {top:.0f})">', *drawn, "</g>"] if top else drawn
        top += canvas.height
    width, height = f"{max(canvas.width for canvas in canvases):.0f}", f"{top:.0f}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="{FONT}">',
            f"<title>{escape(drawings[0].title)}</title>",
            f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def lay_out(drawing: Drawing) -> Canvas:
    """Place all boxes, arrows and texts of a drawing on a canvas."""
    boxes = _ordered(drawing)
    spans = _spans(boxes, drawing.arrows)
    far = sorted((a for a in drawing.arrows if spans[a] > 1), key=lambda a: spans[a])
    gaps = [[a for a in drawing.arrows if {a.source, a.target} == {left.name, right.name}]
            for left, right in pairwise(boxes)]  # fmt: skip
    legend = _legend(drawing)
    canvas = Canvas()
    _place_cards(canvas, drawing, boxes, gaps, far, legend)
    for box in boxes:
        _draw_box(canvas, box, canvas.cards[box.name])
    for arrows, (a, b) in zip(gaps, pairwise(boxes), strict=True):
        _draw_gap(canvas, arrows, a, canvas.cards[b.name])
    _draw_lanes(canvas, far, {box.name: box for box in boxes})
    _draw_legend(canvas, legend)
    title = Text(drawing.title, MARGIN, 40, 18, bold=True)
    canvas.texts += [title, Text(drawing.subtitle, MARGIN, 60, 12, MUTED)]
    return canvas


def _ordered(drawing: Drawing) -> tuple[PlaceBox, ...]:
    """Order the boxes from left to right so that arrows pass over as few boxes as possible."""
    if len(drawing.boxes) > 6:  # there are too many orders to try
        return drawing.boxes
    orders = permutations(drawing.boxes)
    return min(orders, key=lambda boxes: sum(_spans(boxes, drawing.arrows).values()))


def _spans(boxes: Sequence[PlaceBox], arrows: Sequence[FlowArrow]) -> dict[FlowArrow, int]:
    """Return how many columns apart the ends of each arrow are."""
    column = {box.name: i for i, box in enumerate(boxes)}
    return {a: abs(column[a.source] - column[a.target]) for a in arrows}


def _place_cards(
    canvas: Canvas,
    drawing: Drawing,
    boxes: Sequence[PlaceBox],
    gaps: Sequence[Sequence[FlowArrow]],
    far: Sequence[FlowArrow],
    legend: Sequence[tuple[str, str]],
) -> None:
    widths = [_box_width(box) for box in boxes]
    # A gap must be as wide as a lane's label, because `_middles` may put the label above the gap.
    least = max([MIN_GAP, *(_lane_width(a) for a in far[1:])])
    spaces = [max([least, *(_label_width(a) + 30 for a in gap)]) for gap in gaps]
    height = max([*map(_box_height, boxes), *(sum(map(_arrow_height, gap)) + 16 for gap in gaps)])
    row = sum(widths) + sum(spaces) + CARD * 2
    titles = max(text_width(drawing.title, 18, True), text_width(drawing.subtitle, 12))
    inner = max(row, titles, sum(_legend_width(text) for text, _ in legend))
    left, top = MARGIN + (inner - row) / 2, HEADER + LANE * len(far) + CARD * 2 + 12 * bool(far)
    for box, width, space in zip(boxes, widths, [*spaces, 0.0], strict=True):
        canvas.cards[box.name] = Rect(left, top, width, height)
        left += width + space
    below = LOOP if any(box.loop for box in boxes) else 0.0
    canvas.width, canvas.height = inner + 2 * MARGIN, top + height + below + LEGEND + MARGIN / 2


def _box_width(box: PlaceBox) -> float:
    title = text_width(box.name, 15, True) + (text_width(f"x{box.replicas}", 13, True) + 24)
    facts = [text_width(name, 10.5) + text_width(value, 10.5) + 18 for name, value in box.facts]
    small = [text_width(text, 11) for text in (box.on, box.note, box.loop)]
    pills = [sum(_pill_width(name) + 6 for name, _ in row) - 6 for row in _pill_rows(box)]
    return max(MIN_BOX, 2 * PAD + max([title, *facts, *small, *pills]))


def _box_height(box: PlaceBox) -> float:
    lines = bool(box.on) + bool(box.note)
    return 44 + 16 * lines + (PILL + 6) * len(_pill_rows(box)) + 20 + FACT * len(box.facts)


def _pill_width(name: str) -> float:
    return text_width(name, 11) + 18


def _pill_rows(box: PlaceBox) -> list[list[tuple[str, str]]]:
    rows: list[list[tuple[str, str]]] = []
    used = math.inf
    for pill in box.pills:
        width = _pill_width(pill[0]) + 6
        if used + width > MAX_PILLS:
            rows.append([])
            used = 0.0
        rows[-1].append(pill)
        used += width
    return rows


def _draw_box(canvas: Canvas, box: PlaceBox, card: Rect) -> None:
    for i in reversed(range(min(box.replicas, 3))):
        fill = "#f3f5f8" if i else PAPER
        canvas.shapes.append(rounded(card, 9, fill, EDGE, shift=i * CARD))
    x, y = card.left + PAD, card.top + 26
    canvas.texts.append(Text(box.name, x, y, 15, bold=True))
    if box.replicas > 1:
        count = Text(f"x{box.replicas}", card.right - PAD, y, 13, MUTED, "end", bold=True)
        canvas.texts.append(count)
    for about in filter(None, (box.on, box.note)):
        y += 16
        canvas.texts.append(Text(about, x, y, 11, MUTED))
    y += 12
    for row in _pill_rows(box):
        left = x
        for name, role in row:
            _, fill, edge = ROLES.get(role, OTHER)
            rect = Rect(left, y, _pill_width(name), PILL)
            canvas.shapes.append(rounded(rect, PILL / 2, fill, edge))
            canvas.texts.append(Text(name, rect.middle, y + 15, 11, anchor="middle"))
            left = rect.right + 6
        y += PILL + 6
    _draw_facts(canvas, box, card)
    if box.loop:
        _draw_loop(canvas, box.loop, card)


def _draw_facts(canvas: Canvas, box: PlaceBox, card: Rect) -> None:
    y = card.bottom - FACT * len(box.facts) - 11
    if box.facts:
        x1, x2 = card.left + PAD, card.right - PAD
        canvas.shapes.append(f'<path d="M{x1:.1f} {y:.1f}H{x2:.1f}" stroke="#e4e7ec"/>')
    for name, value in box.facts:
        y += FACT
        canvas.texts.append(Text(name, card.left + PAD, y, 10.5, MUTED))
        if value:
            canvas.texts.append(Text(value, card.right - PAD, y, 10.5, anchor="end"))


def _draw_loop(canvas: Canvas, label: str, card: Rect) -> None:
    x1, x2, y = card.middle - 24, card.middle + 24, card.bottom + 26
    _draw_line(canvas, [(x1, card.bottom), (x1, y), (x2, y), (x2, card.bottom + 3)], 2.0)
    canvas.texts.append(Text(label, card.middle, y + 17, 11, anchor="middle"))


def _label_width(arrow: FlowArrow) -> float:
    small = [text_width(text, 10) for text in (*arrow.details, arrow.late)]
    return max([text_width(arrow.label, 11, True), *small]) + 12


def _lane_text(arrow: FlowArrow) -> str:
    return ", ".join(filter(None, (arrow.late, " ".join(arrow.details))))


def _lane_width(arrow: FlowArrow) -> float:
    return max(text_width(arrow.label, 11, True), text_width(_lane_text(arrow), 10)) + 12


def _arrow_height(arrow: FlowArrow) -> float:
    return ARROW + DETAIL * (len(arrow.details) + bool(arrow.late) - 1)


def _draw_gap(canvas: Canvas, arrows: Sequence[FlowArrow], a: PlaceBox, right: Rect) -> None:
    """Draw the arrows between two neighbours from top to bottom. Arrows to the right come first."""
    card = canvas.cards[a.name]
    x1, x2 = card.right + a.behind + 4, right.left - 4
    y = card.top + (card.height - sum(map(_arrow_height, arrows))) / 2 + 4
    for arrow in sorted(arrows, key=lambda arrow: arrow.source != a.name):
        height = y + 22
        ends = (x1, x2) if arrow.source == a.name else (x2, x1)
        _draw_line(canvas, [(x, height) for x in ends], _thickness(arrow.nbytes), bool(arrow.late))
        small = [(arrow.late, LATE)] * bool(arrow.late) + [(text, MUTED) for text in arrow.details]
        _draw_label(canvas, arrow.label, small, (x1 + x2) / 2, height)
        y += _arrow_height(arrow)


def _draw_label(
    canvas: Canvas, label: str, small: Sequence[tuple[str, str]], x: float, y: float
) -> None:
    canvas.texts.append(Text(label, x, y - 8, 11, anchor="middle", bold=True))
    for i, (text, color) in enumerate(small):
        canvas.texts.append(Text(text, x, y + 16 + DETAIL * i, 10, color, "middle"))


def _draw_lanes(canvas: Canvas, far: Sequence[FlowArrow], boxes: dict[str, PlaceBox]) -> None:
    """Draw the arrows that pass over other boxes. Each goes up, along its own lane, and down."""
    ports = _ports(canvas, far)
    for i, arrow in reversed(list(enumerate(far))):  # shorter arrows last, on top where lines cross
        lane = HEADER + LANE * (len(far) - i) - 20
        x1, x2 = ports[i, arrow.source], ports[i, arrow.target]
        y1, y2 = (canvas.cards[n].top - boxes[n].behind for n in (arrow.source, arrow.target))
        corners = [(x1, y1), (x1, lane), (x2, lane), (x2, y2 - 3)]
        _draw_line(canvas, corners, _thickness(arrow.nbytes), bool(arrow.late))
        # Arrows of higher lanes cross this lane on their way up and down: keep the label off them.
        others = [x for (j, _), x in ports.items() if j > i]
        half = _lane_width(arrow) / 2
        free = (x for x in _middles(canvas, x1, x2) if all(abs(x - o) > half for o in others))
        small = [(_lane_text(arrow), LATE if arrow.late else MUTED)]
        _draw_label(canvas, arrow.label, small, next(free, (x1 + x2) / 2), lane)


def _middles(canvas: Canvas, x1: float, x2: float) -> Iterator[float]:
    """Yield x coordinates to try for a lane's label: the lane's middle, then gaps between boxes."""
    yield (x1 + x2) / 2
    for a, b in pairwise(canvas.cards.values()):
        if min(x1, x2) < a.right and b.left < max(x1, x2):
            yield (a.right + b.left) / 2


def _ports(canvas: Canvas, far: Sequence[FlowArrow]) -> dict[tuple[int, str], float]:
    """Return the x coordinates at which arrows meet boxes, so that nested lanes do not cross."""
    ports: dict[tuple[int, str], float] = {}
    for name, card in canvas.cards.items():
        mine = [i for i, arrow in enumerate(far) if name in (arrow.source, arrow.target)]

        def order(i: int, name: str = name) -> tuple[bool, int]:
            other = far[i].target if far[i].source == name else far[i].source
            right = canvas.cards[other].left > canvas.cards[name].left
            return right, -i if right else i

        for k, i in enumerate(sorted(mine, key=order), 1):
            ports[i, name] = card.left + card.width * k / (len(mine) + 1)
    return ports


def _thickness(nbytes: int) -> float:
    return min(6.0, 1.0 + 0.55 * math.log10(max(nbytes, 1)))


def _draw_line(canvas: Canvas, points: Sequence[Point], width: float, dashed: bool = False) -> None:
    canvas.lines.append(list(points))
    canvas.shapes += line(points, width, dashed)


def _legend(drawing: Drawing) -> list[tuple[str, str]]:
    """Return the rows of the legend: a text, and the role or kind of arrow that it explains."""
    used = {role for box in drawing.boxes for _, role in box.pills}
    rows = [(name, role) for role, (name, *_) in ROLES.items() if role in used]
    if drawing.arrows:
        rows.append(("the more bytes, the thicker", "arrow"))
    return rows + [("late", "late")] * any(arrow.late for arrow in drawing.arrows)


def _legend_width(text: str) -> float:
    return text_width(text, 10.5) + 46


def _draw_legend(canvas: Canvas, legend: Sequence[tuple[str, str]]) -> None:
    x, y = MARGIN, canvas.height - 24
    for text, role in legend:
        if role in ("arrow", "late"):
            _draw_line(canvas, [(x, y), (x + 24, y)], 2.0, dashed=role == "late")
        else:
            _, fill, edge = ROLES[role]
            canvas.shapes.append(rounded(Rect(x, y - 6, 20, 12), 6, fill, edge))
        canvas.texts.append(Text(text, x + 28, y + 4, 10.5, MUTED))
        x += _legend_width(text)
