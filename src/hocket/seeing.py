"""Plans as pictures: what a plan knows, turned into what `report` draws."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from hocket.core.footprint import Memory, footprint
from hocket.core.graph import bytes_text
from hocket.core.plan import Channel, Flow, Place, Plan
from hocket.report.diagram import Arrow, Box, Drawing, svg

LINE, LINES = 26, 2
"""How much of what crosses is named beside an arrow: letters a line, and lines."""


def draw_plan(plan: Plan) -> str:
    """A plan as the text of an SVG file: its places, their memory, and what crosses.

    Path("plan.svg").write_text(draw_plan(hocket.plan(PPO(env=env))))
    """
    return svg(drawing_of(plan))


def drawing_of(plan: Plan) -> Drawing:
    """What the picture of a plan shows."""
    graph, memory = plan.graph, footprint(plan)
    about = [
        f"{graph.num_envs:,} environments",
        f"{graph.env_steps:,} environment steps an iteration",
    ]
    return Drawing(
        title=type(graph.algorithm).__name__,
        subtitle=", ".join([*about, *([] if plan.flows else ["nothing crosses"])]),
        boxes=tuple(_box(plan, place, memory[place.name]) for place in plan.places),
        arrows=tuple(_arrow(plan, flow) for flow in plan.flows),
    )


def _box(plan: Plan, place: Place, memory: Memory) -> Box:
    labels = [label for label in plan.graph.labels if plan.where[label.name] == place.name]
    facts = [
        ("memory of each" if plan.instances(place.name) > 1 else "memory", ""),
        ("state", bytes_text(memory.state)),
        ("at once", f"≥ {bytes_text(memory.peak)}"),
    ]
    if memory.messages:
        facts.append(("messages", f"≤ {bytes_text(memory.messages)}"))
    return Box(
        name=place.name,
        pills=tuple((label.name, label.role) for label in labels),
        on=_hardware(place.on),
        facts=tuple(facts),
        replicas=place.replicas,
        note="replicas in one program" if place.name in plan.grouped else "",
    )


def _hardware(on: Sequence[str]) -> str:
    """`gpu:0`, or for many `gpu:0 to gpu:7`."""
    if not on:
        return "any device"
    return ", ".join(on) if len(on) < 4 else f"{on[0]} to {on[-1]}"


def _arrow(plan: Plan, flow: Flow) -> Arrow:
    lag = plan.channels.get(f"{flow.source} -> {flow.target}", Channel()).lag
    count = f"{flow.messages:,} message{'s' * (flow.messages != 1)}"
    return Arrow(
        source=flow.source,
        target=flow.target,
        nbytes=flow.nbytes,
        label=f"{bytes_text(flow.nbytes)}, {count}",
        details=_crossing(flow.values),
        late=f"lag {lag}" if lag else "",
    )


def _crossing(names: Iterable[str]) -> tuple[str, ...]:
    """What crosses, in a few short lines."""
    heads: dict[str, int] = {}
    for name in names:
        made = name.partition(" of ")[2] if "`" in name else ".".join(name.split(".")[:2])
        head = made.partition(" at ")[0].strip("`")
        heads[head] = heads.get(head, 0) + 1
    text = ", ".join(head + (f" ({n} arrays)" if n > 1 else "") for head, n in heads.items())
    return tuple(textwrap.wrap(text, LINE, max_lines=LINES, placeholder=" ..."))
