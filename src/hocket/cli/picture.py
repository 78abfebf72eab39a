"""The drawing of a plan: turns a plan into the boxes and arrows that `report.diagram` draws."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

from hocket.cli.picture_nodes import nodes_drawing
from hocket.core.plan.data import Place, Plan
from hocket.core.plan.memory import Memory, footprint
from hocket.core.plan.nodes import Rates
from hocket.core.plan.text_nodes import devices_text
from hocket.core.plan.traffic import Flow, averages, flows
from hocket.report.diagram import Drawing, FlowArrow, PlaceBox, svg
from hocket.system.text import bytes_text, names_text

LINE, LINES = 26, 2
"""The room beside an arrow for the names of values: letters per line, and number of lines."""
LONGEST = 40
"""The most letters for the devices of a place on several nodes. More are counted instead."""


def draw_plan(plan: Plan, rates: Rates | None = None) -> str:
    """Return an SVG drawing of a plan: its places, their memory, and the values sent between them.

    Path("plan.svg").write_text(draw_plan(hocket.plan(PPO(env=env))))

    On a cluster, a second drawing below shows its nodes, and what crosses between them. With
    `rates`, the measured speed between nodes, it also says how long that takes.
    """
    nodes = [nodes_drawing(plan, rates)] if plan.launch.nodes else []
    return svg(drawing_of(plan), *nodes)


def drawing_of(plan: Plan) -> Drawing:
    """Return the title, boxes and arrows of a plan's drawing, from which `svg` makes an image."""
    memory, crossing, averaged = footprint(plan), flows(plan), averages(plan)
    return Drawing(
        title=type(plan.graph.algorithm).__name__,
        subtitle=", ".join(_about(plan, alone=not crossing and not averaged)),
        boxes=tuple(
            _box(plan, place, memory[place.name], averaged.get(place.name)) for place in plan.places
        ),
        arrows=tuple(_arrow(plan, flow) for flow in crossing),
    )


def _about(plan: Plan, *, alone: bool) -> Iterator[str]:
    yield f"{plan.graph.num_envs:,} environments"
    yield f"{plan.graph.env_steps:,} environment steps an iteration"
    if plan.parts > 1:
        yield f"loops in {plan.parts} parts"
    if plan.launch.name and not plan.launch.one_process:
        yield f"launched as {plan.launch.name}"
    if alone:
        yield "nothing crosses"


def _box(plan: Plan, place: Place, memory: Memory, averaged: tuple[int, int] | None) -> PlaceBox:
    labels = [label for label in plan.graph.labels if plan.where[label.name] == place.name]
    facts = [
        ("memory of each" if plan.instances(place.name) > 1 else "memory", ""),
        ("state", bytes_text(memory.state)),
        ("at once", f"≥ {bytes_text(memory.peak)}"),
    ]
    if memory.messages:
        facts.append(("messages", f"≤ {bytes_text(memory.messages)}"))
    return PlaceBox(
        name=place.name,
        pills=tuple((label.name, label.role) for label in labels),
        on=_hardware(place),
        facts=tuple(facts),
        replicas=place.replicas,
        note="replicas in one program" if place.name in plan.grouped else "",
        loop=_averages(*averaged) if averaged else "",
    )


def _hardware(place: Place) -> str:
    """Return the devices of a place: `gpu:0, gpu:1`, or for many `gpu:0 to gpu:7`."""
    names = [str(device) for device in place.on]
    if nodes := list(dict.fromkeys(device.node for device in place.on if device.node)):
        devices = devices_text(place.on)
        if len(devices) > LONGEST:
            devices = f"{len(set(names)):,} devices of {names_text(nodes)}"
    else:
        devices = ", ".join(names) if len(names) < 4 else f"{names[0]} to {names[-1]}"
    backend = f", {place.backend}" if place.backend != "jax" else ""
    return (devices or "any device") + backend


def _averages(calls: int, nbytes: int) -> str:
    return f"averages {bytes_text(nbytes)}, {_messages(calls)}"


def _messages(count: int) -> str:
    return f"{count:,} message{'s' * (count != 1)}"


def _arrow(plan: Plan, flow: Flow) -> FlowArrow:
    channel, free = plan.channel(flow.source, flow.target), plan.free
    late = [f"lag {channel.lag}"] * bool(channel.lag)
    if free and (flow.source, flow.target) == (free.learner, free.maker):
        late = ["lag free"]
    late += [f"delay {channel.delay * 1e3:g} ms"] * bool(channel.delay)
    return FlowArrow(
        source=flow.source,
        target=flow.target,
        nbytes=flow.nbytes,
        label=f"{bytes_text(flow.nbytes)}, {_messages(flow.messages)}",
        details=_crossing(flow.values),
        late=", ".join(late),
    )


def _crossing(names: Iterable[str]) -> tuple[str, ...]:
    """Return a few short lines that name the origins of the values sent between two places.

    Each fragment or part of the state appears once, with the number of its arrays if it sent more
    than one.
    """
    origins = Counter(map(_origin, names))
    text = ", ".join(name + (f" ({n} arrays)" if n > 1 else "") for name, n in origins.items())
    return tuple(textwrap.wrap(text, LINE, max_lines=LINES, placeholder=" ..."))


def _origin(name: str) -> str:
    """Return the fragment that made a value, or the part of the state that it belongs to."""
    origin = name.partition(" of ")[2] if "`" in name else ".".join(name.split(".")[:2])
    return origin.partition(" at ")[0].strip("`")
