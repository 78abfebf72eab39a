"""A plan: which place runs which fragments on what, and what crosses between them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hocket.core.axes import Axes, check_kind, shrinks_to_one, uses_averaged
from hocket.core.fragment import ROLES, Label
from hocket.core.graph import Graph, bytes_text
from hocket.core.kinds import Kind
from hocket.core.project import Projection, project
from hocket.errors import PlanError, unknown


@dataclass(frozen=True)
class Place:
    """A named part of a plan with its hardware.

    `run` lists fragments, by role or by name (a name wins over a role). `replicas` are separate
    instances, each with an equal share of the environments.
    """

    name: str
    run: tuple[str, ...]
    on: tuple[str, ...] = ()
    replicas: int = 1

    def __init__(
        self, name: str, run: Iterable[str], on: Iterable[Any] = (), replicas: int = 1
    ) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "run", tuple(run))
        object.__setattr__(self, "on", tuple(str(device) for device in on))
        object.__setattr__(self, "replicas", replicas)


@dataclass(frozen=True)
class Channel:
    """How values cross from one place to another. `lag=0` waits: the fused program's numbers."""

    capacity: int = 1
    """How many messages of one transfer may be under way."""
    lag: int = 0
    """How many iterations the reader runs ahead, on values that much older."""


@dataclass(frozen=True)
class Flow:
    """All that crosses from one place to another in an iteration."""

    source: str
    target: str
    values: tuple[str, ...]
    messages: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class Plan:
    """Places and channels for one graph, checked when made: what cannot run is refused by name."""

    graph: Graph = field(repr=False)
    places: tuple[Place, ...]
    channels: Mapping[str, Channel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", tuple(self.places))
        self._check_places()
        self._check_channels()
        for place in self.places:
            if place.replicas > 1:
                self._check_replicas(place)

    def place(self, name: str) -> Place:
        return next(place for place in self.places if place.name == name)

    @functools.cached_property
    def where(self) -> dict[str, str]:
        """The place of every fragment."""
        return {label.name: self._place_of(label).name for label in self.graph.labels}

    @functools.cached_property
    def axes(self) -> Axes:
        return Axes(self.graph, self.graph.at(2 * self.graph.num_envs))

    @functools.cached_property
    def projection(self) -> Projection:
        return project(self.graph, self.where, {p.name: p.replicas for p in self.places})

    @functools.cached_property
    def grouped(self) -> frozenset[str]:
        """The replicated places that use `averaged`: their replicas run as one program."""
        owner = self.projection.placement.node
        using = {owner.get(n.id) for n in self.graph.nodes if uses_averaged(n)}
        return frozenset(p.name for p in self.places if p.replicas > 1 and p.name in using)

    def instances(self, name: str) -> int:
        """How many instances run a place, as seen from outside."""
        return 1 if name in self.grouped else self.place(name).replicas

    @functools.cached_property
    def kinds(self) -> dict[str, dict[int, Kind]]:
        """For every replicated place, the kinds of the values there."""
        placement = self.projection.placement
        return {
            place.name: self._axes_on(place).on_place(
                lambda n, name=place.name: placement.node.get(n.id) == name or placement.is_free(n)
            )
            for place in self.places
            if place.replicas > 1
        }

    def _axes_on(self, place: Place) -> Axes:
        """The axes as a replica sees them: against the program with its share of environments."""
        graph, share = self.graph, self.graph.num_envs // place.replicas
        if shrinks_to_one(graph, graph.at(share)):
            # jax leaves equations out for an axis of size one; twice the sizes stand for these.
            return Axes(graph.at(2 * graph.num_envs), graph.at(2 * share))
        return Axes(graph, graph.at(share))

    @functools.cached_property
    def flows(self) -> tuple[Flow, ...]:
        """What crosses in an iteration, with its bytes."""
        found: dict[tuple[str, str], list[Any]] = {}
        for t in self.projection.transfers:
            found.setdefault((t.source, t.target), []).append(t)
        return tuple(
            Flow(
                source, target,
                tuple(dict.fromkeys(self.graph.values[v].name for t in ts for v in t.values)),
                sum(t.times * self._pairs(source, target) for t in ts),
                sum(t.times * self._nbytes(v, t.target) for t in ts for v in t.values),
            )
            for (source, target), ts in found.items()
        )  # fmt: skip

    def _pairs(self, source: str, target: str) -> int:
        return max(self.instances(source), self.instances(target))

    def _nbytes(self, value: int, target: str) -> int:
        split = self.axes.axis(value) is not None
        return self.graph.values[value].nbytes * (1 if split else self.instances(target))

    def to_json(self) -> str:
        """The plan as text; `Plan.from_json` with the same graph gives it back."""
        return json.dumps(
            {
                "algorithm": type(self.graph.algorithm).__name__,
                "num_envs": self.graph.num_envs,
                "digest": self.graph.digest,
                "places": [asdict(place) for place in self.places],
                "channels": {name: asdict(channel) for name, channel in self.channels.items()},
            },
            indent=2,
        )

    @staticmethod
    def from_json(text: str, graph: Graph) -> Plan:
        """A plan from its text, for a graph that must be the one it was made for."""
        data = json.loads(text)
        if data["digest"] != graph.digest:
            raise PlanError(
                f"the plan was made for {data['algorithm']} with {data['num_envs']} environments "
                f"and graph {data['digest']}, and this is graph {graph.digest} of "
                f"{type(graph.algorithm).__name__} with {graph.num_envs}. Make the plan again."
            )
        places = [Place(**place) for place in data["places"]]
        channels = {name: Channel(**channel) for name, channel in data["channels"].items()}
        return Plan(graph, tuple(places), channels)

    def __str__(self) -> str:
        lines = [str(self.graph), ""]
        for place in self.places:
            runs = ", ".join(n for n, p in self.where.items() if p == place.name)
            times = f" x{place.replicas}" if place.replicas > 1 else ""
            together = " (one program)" if place.name in self.grouped else ""
            on = f"  on {', '.join(place.on)}" if place.on else ""
            lines.append(f"{place.name}{times}{together}: {runs}{on}")
        if not self.flows:
            lines.append("nothing crosses")
        for flow in self.flows:
            lag = self.channels.get(f"{flow.source} -> {flow.target}", Channel()).lag
            late = f", {lag} iterations late" if lag else ""
            lines.append(
                f"{flow.source} -> {flow.target}: {bytes_text(flow.nbytes)} an iteration in "
                f"{flow.messages} message{'s' * (flow.messages != 1)}{late}"
            )
            lines += [f"    {name}" for name in _shortened(flow.values)]
        return "\n".join(lines)

    def _place_of(self, label: Label) -> Place:
        by_name = [p for p in self.places if label.name in p.run]
        found = by_name or [p for p in self.places if label.role in p.run]
        if len(found) != 1:
            who = (
                f"{len(found)} places ({', '.join(p.name for p in found)})" if found else "no place"
            )
            raise PlanError(
                f"the fragment `{label.name}` (role `{label.role}`) is run by {who}. Put its name "
                f"or its role into `run` of exactly one place."
            )
        return found[0]

    def _check_places(self) -> None:
        names = [place.name for place in self.places]
        if not names or len(set(names)) < len(names):
            raise PlanError(f"a plan needs places of different names, found {names}.")
        known = {*ROLES, *(label.name for label in self.graph.labels)}
        for place in self.places:
            for entry in place.run:
                if entry not in known:
                    where = f"in `run` of the place `{place.name}`"
                    raise PlanError(unknown("fragment or role", entry, known, where))
        for place in self.places:
            if place.name not in self.where.values():
                raise PlanError(
                    f"the place `{place.name}` runs no fragment of this graph; remove it."
                )
            if place.replicas < 1 or self.graph.num_envs % place.replicas:
                raise PlanError(
                    f"{self.graph.num_envs} environments cannot be shared equally by "
                    f"{place.replicas} replicas of `{place.name}`: choose a multiple of "
                    f"{place.replicas}."
                )

    def _check_channels(self) -> None:
        crossing = [f"{flow.source} -> {flow.target}" for flow in self.flows]
        for name, channel in self.channels.items():
            if name not in crossing:
                raise PlanError(unknown("channel", name, crossing))
            if channel.capacity < 1 or channel.lag < 0:
                raise PlanError(
                    f"the channel `{name}` needs capacity >= 1 and lag >= 0: {channel}."
                )
        for flow in self.flows:
            a, b = self.instances(flow.source), self.instances(flow.target)
            if max(a, b) % min(a, b):
                raise PlanError(
                    f"{a} replicas of `{flow.source}` cannot share out to {b} of `{flow.target}`: "
                    f"make one number a multiple of the other."
                )

    def _check_replicas(self, place: Place) -> None:
        """Refuse what would not give the fused program's numbers with several replicas."""
        axes, kinds = self._axes_on(place), self.kinds[place.name]
        home, block, values = self.projection.placement.home, self.graph.block, self.graph.values

        def check(value: int, what: str, kind: Kind | None = None) -> None:
            kind = kind or kinds.get(value) or axes.from_outside(value)
            check_kind(axes, value, kind, what, place.name)

        for t in self.projection.transfers:
            for v in t.values:
                if place.name == t.source:
                    check(v, f"{values[v].name}, sent to `{t.target}`")
                elif place.name == t.target:
                    received = f"{values[v].name}, received from `{t.source}`"
                    check(v, received, axes.from_outside(v))
        for v, out in zip(block.inputs, block.outputs, strict=False):
            if home[v] == place.name:
                check(v, f"`{values[v].name}` of the state")
                check(out, f"`{values[v].name}` of the state")
        for name, out in zip(
            sorted(self.graph.metrics), block.outputs[self.graph.num_leaves :], strict=True
        ):
            if home[out] == place.name:
                check(out, f"the metric `{name}`")


def _shortened(names: Iterable[str]) -> list[str]:
    """Names of one tree on one line: `learner.params (12 arrays)`."""
    groups: dict[str, int] = {}
    for name in names:
        head = ".".join(name.split(".")[:2]) if "`" not in name else name.partition(" of ")[2]
        groups[head] = groups.get(head, 0) + 1
    return [head + (f" ({n} arrays)" if n > 1 else "") for head, n in groups.items()]
