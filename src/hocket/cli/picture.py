"""Plans as pictures: what a plan knows, turned into what `report` draws."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from hocket.core.plan.data import Place, Plan
from hocket.core.plan.memory import Memory, footprint
from hocket.core.plan.traffic import Flow, averages, flows
from hocket.report.diagram import Drawing, FlowArrow, PlaceBox, svg
from hocket.system.text import bytes_text

LINE, LINES = 26, 2
"""How much of what crosses is named beside an arrow: letters a line, and lines."""


def draw_plan(plan: Plan) -> str:
    """A plan as the text of an SVG file: its places, their memory, and what crosses.

    Path("plan.svg").write_text(draw_plan(hocket.plan(PPO(env=env))))
    """
    return svg(drawing_of(plan))


def drawing_of(plan: Plan) -> Drawing:
    """The contents of the picture of a plan."""
    memory, crossing, averaged = footprint(plan), flows(plan), averages(plan)
    about = [*_about(plan), *(["nothing crosses"] if not crossing and not averaged else [])]
    return Drawing(
        title=type(plan.graph.algorithm).__name__,
        subtitle=", ".join(about),
        boxes=tuple(
            _box(plan, place, memory[place.name], averaged.get(place.name)) for place in plan.places
        ),
        arrows=tuple(_arrow(plan, flow) for flow in crossing),
    )


def _about(plan: Plan) -> Iterator[str]:
    yield f"{plan.graph.num_envs:,} environments"
    yield f"{plan.graph.env_steps:,} environment steps an iteration"
    if plan.parts > 1:
        yield f"loops in {plan.parts} parts"
    if not plan.launch.one_process:
        yield f"launched as {plan.launch.name}"


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
    """`gpu:0`, or for many `gpu:0 to gpu:7`."""
    devices = ", ".join(place.on) if len(place.on) < 4 else f"{place.on[0]} to {place.on[-1]}"
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
    """The values that cross, in a few short lines."""
    heads: dict[str, int] = {}
    for name in names:
        made = name.partition(" of ")[2] if "`" in name else ".".join(name.split(".")[:2])
        head = made.partition(" at ")[0].strip("`")
        heads[head] = heads.get(head, 0) + 1
    text = ", ".join(head + (f" ({n} arrays)" if n > 1 else "") for head, n in heads.items())
    return tuple(textwrap.wrap(text, LINE, max_lines=LINES, placeholder=" ..."))
