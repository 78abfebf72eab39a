from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, permutations
from xml.etree import ElementTree

import pytest
from tests.clusters import gpus, hosts
from tests.toys import Toy

from hocket import Channel, Place, Plan, trace
from hocket.cli.picture import draw_plan, drawing_of
from hocket.cli.picture_nodes import MOST_STACKS, nodes_drawing
from hocket.core.plan.nodes import Rates, node_groups
from hocket.report.diagram import Canvas, Drawing, FlowArrow, PlaceBox, lay_out, svg
from hocket.report.shapes import Point, Rect, Text, text_width
from hocket.runtime.launch import launch_named
from hocket.strategies import resolve

NAMES = ("environment-server", "actor", "replay", "learner", "parameters")


def boxes(count: int) -> tuple[PlaceBox, ...]:
    """Make boxes with long names, every other one with an average among its replicas."""
    return tuple(
        PlaceBox(
            name,
            pills=((f"{name}_step", "env"), ("act", "act"), ("gradient_of_everything", "gradient")),
            on="gpu:0 to gpu:7", facts=(("memory", ""), ("state", "1.0 MiB")), replicas=1 + i,
            loop="averages 24.0 KiB, 8 messages" if i % 2 else "",
        )
        for i, name in enumerate(NAMES[:count])
    )  # fmt: skip


def arrows(count: int, only: set[tuple[str, str]] | None = None) -> tuple[FlowArrow, ...]:
    """Make arrows between every two boxes, in both directions."""
    pairs = [p for p in permutations(NAMES[:count], 2) if only is None or p in only]
    return tuple(
        FlowArrow(a, b, 10**i, f"{i}.0 KiB, 32 messages", (f"rollout.{a},", f"and {i} more"),
              late="lag 1" if i % 3 == 0 else "")
        for i, (a, b) in enumerate(pairs)
    )  # fmt: skip


DRAWINGS = {
    **{f"{n} apart": Drawing("PPO", "64 environments", boxes(n)) for n in range(1, 6)},
    **{f"{n} joined": Drawing("PPO", "64 environments", boxes(n), arrows(n)) for n in range(2, 6)},
    "a wide title": Drawing("PPO" * 40, "64 environments" * 10, boxes(1)),
    "a chain": Drawing("PPO", "", boxes(5), arrows(5, set(pairwise(NAMES)))),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_all_is_there(name: str) -> None:
    drawing = DRAWINGS[name]
    root = ElementTree.fromstring(svg(drawing))
    shown = [x.text for x in root.iter("{http://www.w3.org/2000/svg}text")]
    for box in drawing.boxes:
        assert {box.name, box.on, *(name for name, _ in box.pills)} <= set(shown)
        assert box.replicas == 1 or f"x{box.replicas}" in shown
        assert not box.loop or box.loop in shown
    text = " ".join(filter(None, shown))
    for arrow in drawing.arrows:
        assert arrow.label in shown
        assert " ".join(arrow.details) in text


@pytest.mark.parametrize("name", DRAWINGS)
def test_no_label_meets_another_nor_a_line(name: str) -> None:
    labels_are_free(lay_out(DRAWINGS[name]))


def labels_are_free(canvas: Canvas) -> None:
    for a, b in combinations(canvas.texts, 2):
        assert not meet(room(a), room(b)), (a, b)
    for text in canvas.texts:
        assert not [line for line in canvas.lines if passes(line, room(text))], text
    for a, b in combinations(canvas.cards.values(), 2):
        assert not meet(a, b)


@pytest.mark.parametrize("name", DRAWINGS)
def test_nothing_is_outside(name: str) -> None:
    canvas = lay_out(DRAWINGS[name])
    for rect in (*canvas.cards.values(), *(room(text) for text in canvas.texts)):
        assert rect.left >= 0 and rect.right <= canvas.width, rect
        assert rect.top >= 0 and rect.bottom <= canvas.height, rect
    for x, y in (point for line in canvas.lines for point in line):
        assert 0 <= x <= canvas.width and 0 <= y <= canvas.height
    inside(canvas)


def room(text: Text) -> Rect:
    """Return the rectangle that a text covers."""
    width = text_width(text.text, text.size, text.bold)
    left = text.x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[text.anchor]
    return Rect(left, text.y - 0.8 * text.size, width, text.size)


def meet(a: Rect, b: Rect) -> bool:
    """Return True if two rectangles overlap."""
    apart = a.right <= b.left or b.right <= a.left
    return not (apart or a.bottom <= b.top or b.bottom <= a.top)


def inside(canvas: Canvas) -> None:
    """Return True if a text that begins in a box also ends in it."""
    for text in canvas.texts:
        for card in canvas.cards.values():
            if meet(room(text), card):
                assert card.left <= room(text).left and room(text).right <= card.right, text


def passes(line: list[Point], rect: Rect) -> bool:
    """Return True if a line of vertical and horizontal pieces crosses a rectangle."""
    pieces = [
        Rect(min(x1, x2) - 1, min(y1, y2) - 1, abs(x1 - x2) + 2, abs(y1 - y2) + 2)
        for (x1, y1), (x2, y2) in pairwise(line)
    ]
    return any(meet(piece, rect) for piece in pieces)


def test_neighbours_are_those_with_arrows() -> None:
    apart = Drawing("", "", boxes(3), (FlowArrow(NAMES[0], NAMES[2], 8, "8 B, 1 message"),))
    order = list(lay_out(apart).cards)
    assert abs(order.index(NAMES[0]) - order.index(NAMES[2])) == 1
    assert list(lay_out(replace(apart, arrows=())).cards) == list(NAMES[:3])


def test_names_are_no_markup() -> None:
    odd = Drawing("a < b & c", "", (PlaceBox("<b>", pills=(("x & y", "strange role"),)),))
    shown = [x.text for x in ElementTree.fromstring(svg(odd)).iter()]
    assert {"a < b & c", "<b>", "x & y"} <= set(shown)


def test_a_plan() -> None:
    places = (
        Place("actor", run=("env", "act"), on=("cpu:0",), replicas=2),
        Place("learner", run=("learn",)),
    )
    plan = Plan(trace(Toy(), 8), places, {"learner -> actor": Channel(lag=1)})
    drawing = drawing_of(plan)
    actor, learner = drawing.boxes
    assert (drawing.title, actor.on, actor.replicas) == ("Toy", "cpu:0", 2)
    assert drawing.subtitle == "8 environments, 24 environment steps an iteration"
    assert actor.pills == (("act", "act"), ("env", "env")) and learner.pills == (
        ("update", "learn"),
    )
    assert actor.facts[:2] == (("memory of each", ""), ("state", "96 B"))
    assert learner.facts[1:] == (("state", "24 B"), ("at once", "≥ 428 B"), ("messages", "≤ 384 B"))
    assert {(a.source, a.label, a.details, a.late) for a in drawing.arrows} == {
        ("actor", "384 B, 2 messages", ("x",), ""),
        ("learner", "32 B, 2 messages", ("w",), "lag 1"),
    }
    assert draw_plan(plan) == svg(drawing)
    ElementTree.fromstring(draw_plan(plan))


def test_a_plan_that_averages() -> None:
    workers = Place(
        "worker", run=("env", "act", "learn"), on=[f"cpu:{i}" for i in range(4)], replicas=4
    )
    drawing = drawing_of(Plan(trace(Toy(), 8), (workers,), launch=launch_named("processes")))
    (box,) = drawing.boxes
    assert drawing.subtitle.endswith("an iteration, launched as processes")
    assert (box.on, box.loop) == ("cpu:0 to cpu:3", "averages 20 B, 2 messages")
    one = drawing_of(Plan(trace(Toy(), 8), (replace(workers, on=(), replicas=1),)))
    assert one.subtitle.endswith(", nothing crosses") and not one.boxes[0].loop


def test_a_slow_channel() -> None:
    places = (Place("actor", run=("env", "act")), Place("learner", run=("learn",)))
    channels = {
        "actor -> learner": Channel(delay=0.01),
        "learner -> actor": Channel(lag=2, delay=0.5),
    }
    drawing = drawing_of(Plan(trace(Toy(), 8), places, channels))
    late = {arrow.source: arrow.late for arrow in drawing.arrows}
    assert late == {"actor": "delay 10 ms", "learner": "lag 2, delay 500 ms"}
    assert [box.on for box in drawing.boxes] == ["any device", "any device"]


NODES = {
    "two": ("actor_learner:actors=4", gpus(2, 3)),
    "many equal": ("actor_learner:actors=16", hosts(*[2] * 8)),
    "all with all": ("data_parallel:replicas=8", hosts(*[2] * 8)),
    "more kinds than are drawn": ("actor_learner:actors=36", hosts(*range(1, 9))),
}


@pytest.mark.parametrize("name", NODES)
def test_a_plan_on_nodes(name: str) -> None:
    """Below the places, the nodes are drawn: all that equal nodes share is drawn once."""
    words, nodes = NODES[name]
    plan = resolve(words)(trace(Toy(), 144), nodes)
    rates: Rates = {(a.name, b.name): (0.25, 1e12) for a in nodes.nodes for b in nodes.nodes}
    drawing = nodes_drawing(plan, rates)
    groups = node_groups(plan)
    assert drawing.title == f"{len(nodes.nodes)} nodes"
    assert len(drawing.boxes) == min(len(groups), MOST_STACKS)
    drawn = sum(box.replicas for box in drawing.boxes)
    assert (", without " in drawing.subtitle) == (drawn < len(nodes.nodes))
    assert bool(drawing.arrows) != any(box.loop for box in drawing.boxes)
    assert all(arrow.details[-1] == "250 ms" for arrow in drawing.arrows)
    assert all(x.details[-1] == "not measured" for x in nodes_drawing(plan, {}).arrows)
    labels_are_free(lay_out(drawing))
    assert draw_plan(plan, rates) == svg(drawing_of(plan), drawing)


def test_drawings_are_below_each_other() -> None:
    one, other = DRAWINGS["2 apart"], DRAWINGS["3 joined"]
    root = ElementTree.fromstring(svg(one, other))
    canvases = lay_out(one), lay_out(other)
    assert float(root.attrib["height"]) == round(sum(canvas.height for canvas in canvases))
    assert float(root.attrib["width"]) == round(max(canvas.width for canvas in canvases))
    (group,) = (x for x in root if x.tag.endswith("}g"))
    assert group.attrib["transform"] == f"translate(0 {canvases[0].height:.0f})"


def test_many_devices_of_nodes_are_counted() -> None:
    plan = resolve("actor_learner:actors=9")(trace(Toy(), 72), gpus(4, 4))
    assert drawing_of(plan).boxes[0].on == "7 devices of n0, n1"
    assert "launched" not in drawing_of(plan).subtitle
