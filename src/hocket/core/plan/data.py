"""A plan: which place runs which fragments on what, and what crosses between them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from hocket.core.analysis.axes import Axes, shrinks_to_one, uses_averaged
from hocket.core.analysis.kinds import Kind
from hocket.core.graph.trace import Graph, Loop, NodeId, ValueId
from hocket.core.plan.device_id import DeviceId, device_ids
from hocket.core.plan.schedule import LOCKSTEP, Free, Sampling, Schedule
from hocket.core.plan.text import plan_text
from hocket.core.program.fragment import Label
from hocket.core.program.service import Serving
from hocket.core.projection.instructions import Projection, Transfer
from hocket.core.projection.project import project
from hocket.errors import PlanError, unknown


@dataclass(frozen=True)
class Place:
    """A named part of a plan with its hardware.

    `run` lists fragments, by role or by name (a name wins over a role). `replicas` are separate
    instances, each with an equal share of the environments and of the devices in `on`. `backend`
    swaps in other implementations where fragments have them: `jax`, `cpp`, `pallas`.
    """

    name: str
    run: tuple[str, ...]
    on: tuple[DeviceId, ...] = ()
    """Given as devices of a cluster, as ids, or as their texts."""
    replicas: int = 1
    backend: str = "jax"

    def __init__(
        self,
        name: str,
        run: Iterable[str],
        on: Iterable[object] = (),
        replicas: int = 1,
        backend: str = "jax",
    ) -> None:
        given = {"name": name, "run": tuple(run), "replicas": replicas, "backend": backend}
        vars(self).update(given, on=device_ids(on))  # a frozen class has no simpler way

    def share(self, index: int) -> tuple[DeviceId, ...]:
        """The devices of one replica: some of its own, or one that it shares with others."""
        size = max(1, len(self.on) // self.replicas)
        return self.on[index * len(self.on) // self.replicas :][:size]


@dataclass(frozen=True)
class Channel:
    """How values cross from one place to another. `lag=0` waits: the fused program's numbers."""

    capacity: int = 1
    """How many messages of one transfer may be under way, beside those that are late."""
    lag: int = 0
    """How many iterations the reader runs ahead, on values that much older: in iteration i it
    reads what was sent in iteration i - lag, and until there is such a one, what was sent first."""
    delay: float = 0.0
    """Seconds added to every message: what if the network were so slow?"""
    pack: bool | None = None
    """Between processes: whether an end on one device sends or receives the small arrays of a
    message as one. None: where that is faster. No number depends on it."""
    transport: str = ""
    """What carries the messages, by name, or as `module:NAME` or `file.py:NAME`; empty for what is
    best where the ends are. No number depends on it."""


@dataclass(frozen=True)
class Mean:
    """How `averaged` goes between the replicas of one place, where these are processes."""

    way: str = ""
    """The way, by name, or as `module:NAME` or `file.py:NAME`; empty for the one that was measured
    to be the fastest."""
    delay: float = 0.0
    """Seconds added to every mean: what if the network were so slow?"""


@dataclass(frozen=True)
class Launch:
    """How the instances of a plan run: what may be counted on. By default here, as threads.

    The launcher of this name has the same abilities, or the plan is refused.
    """

    name: str = ""
    """By which the launcher is found; none: wherever the run itself is."""
    one_process: bool = True
    """Whether all instances are in the process of the run: it hands them arrays, not bytes, and
    has settled what only a new process can choose, such as flags of XLA."""
    one_program: bool = True
    """Whether replicas that average run as one program, mapped over them."""
    shares_memory: Literal["all", "node", "none"] = "all"
    """Who can see the same memory: all instances, those of one machine, or nobody."""

    def __post_init__(self) -> None:
        if self.shares_memory not in (known := ("all", "node", "none")):
            raise ValueError(unknown("value", self.shares_memory, known, "of `shares_memory`"))
        if self.one_program and not self.one_process:
            raise ValueError(
                f"the launcher `{self.name}` says that replicas are one program, and instances "
                f"processes: one_program=True needs one_process=True."
            )


@dataclass(frozen=True, eq=False)
class Plan:
    """Places and channels for one graph. `check` refuses one that cannot run, by name.

    Where nobody waits, an iteration is one of the learner: on one sample, or on a batch of them, so
    on that share of the environments.
    """

    graph: Graph = field(repr=False)
    places: tuple[Place, ...]
    channels: Mapping[str, Channel] = field(default_factory=dict)
    """By `source -> target`; a channel that is not named is the usual one."""
    means: Mapping[str, Mean] = field(default_factory=dict)
    """By place, of those whose replicas average in processes."""
    schedule: Schedule = LOCKSTEP
    parts: int = 1
    """Into how many parts of the environments loops that cross places are cut: with two, one half
    steps while the other half's actions are computed."""
    launch: Launch = Launch()
    """How instances run."""
    serving: Serving = field(default_factory=Serving)
    """How services are reached, where the graph has some."""
    compiler_flags: str = ""
    """Flags of the compiler for the processes of a plan."""
    notes: tuple[str, ...] = ()
    """What a strategy has to say about what it chose."""
    words: str = ""
    """The strategy that makes this plan again, where the one that made it goes by what it finds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", tuple(self.places))

    def channel(self, source: str, target: str) -> Channel:
        """How values cross from one place to another."""
        return self.channels.get(f"{source} -> {target}", Channel())

    def channel_of(self, transfer: Transfer) -> Channel:
        return self.channel(transfer.source, transfer.target)

    def place(self, name: str) -> Place:
        return next(place for place in self.places if place.name == name)

    @functools.cached_property
    def free(self) -> Sampling | None:
        """The learner and the makers of samples that do not wait; None where everybody waits."""
        if not (isinstance(self.schedule, Free) and self.schedule.pairs):
            return None
        pair = self.schedule.pairs[0]
        replicas = self.place(pair.makers).replicas
        return Sampling(pair.learner, pair.makers, replicas, pair.max_age, pair.batch)

    @functools.cached_property
    def iteration(self) -> Graph:
        """The step as one iteration takes it."""
        return self.graph.at(self.graph.num_envs // (self.free.shares if self.free else 1))

    def envs_of(self, name: str) -> int:
        """The environments that a place, all of its replicas together, has in an iteration."""
        learns = self.free is not None and name == self.free.learner
        return (self.iteration if learns else self.graph).num_envs

    @functools.cached_property
    def where(self) -> dict[str, str]:
        """The place of every fragment."""
        return {label.name: _place_of(self.places, label) for label in self.graph.labels}

    @functools.cached_property
    def axes(self) -> Axes:
        """The axes of the environments.

        Another number of environments shows them: a replica's share, which is traced anyway.
        """
        graph = self.graph
        shared = (p for p in self.places if p.replicas > 1 and graph.num_envs % p.replicas == 0)
        place = next(shared, None)
        return self.axes_on(place) if place else Axes(graph, graph.at(2 * graph.num_envs))

    @functools.cached_property
    def projection(self) -> Projection:
        places = {p.name: p.replicas for p in self.places}
        return project(self.graph, self.where, places, self.free and self.free.learner)

    @functools.cached_property
    def grouped(self) -> frozenset[str]:
        """The replicated places that use `averaged`, where their replicas run as one program.

        Blocking callbacks of several threads on one CPU device would hang XLA's thread pool.
        """
        return self.averaging if self.launch.one_program else frozenset()

    @functools.cached_property
    def averaging(self) -> frozenset[str]:
        """The replicated places that use `averaged`."""
        owner = self.projection.placement.node
        using = {owner.get(n.id) for n in self.graph.nodes if uses_averaged(n)}
        return frozenset(p.name for p in self.places if p.replicas > 1 and p.name in using)

    def instances(self, name: str) -> int:
        """How many instances run a place, as seen from outside."""
        return 1 if name in self.grouped else self.place(name).replicas

    @functools.cached_property
    def kinds(self) -> dict[str, dict[ValueId, Kind]]:
        """For every replicated place, the kinds of the values there."""
        placement = self.projection.placement
        return {
            place.name: self.axes_on(place).on_place(
                lambda n, name=place.name: placement.node.get(n.id) == name or placement.is_free(n)
            )
            for place in self.places
            if place.replicas > 1
        }

    def axes_on(self, place: Place, parts: int = 1) -> Axes:
        """The axes as a replica sees them: against the program with its share of environments."""
        graph, share = self.graph, self.graph.num_envs // (place.replicas * parts)
        if shrinks_to_one(graph, graph.at(share)):
            # jax leaves equations out for an axis of size one; twice the sizes stand for these.
            return Axes(graph.at(2 * graph.num_envs), graph.at(2 * share))
        return Axes(graph, graph.at(share))

    @functools.cached_property
    def cut_loops(self) -> frozenset[NodeId]:
        """The loops that run in `parts`: those where every message has something by environment."""
        if self.parts == 1:
            return frozenset()
        found: dict[NodeId, bool] = {}
        for t in self.projection.transfers:
            if t.loops:
                by_env = any(self.axes.axis(v) is not None for v in t.values)
                found[t.loops[0]] = found.get(t.loops[0], True) and by_env
        return frozenset(loop for loop, by_env in found.items() if by_env)

    def blocks(self, loop: NodeId) -> int:
        """The most replicas that a place with a part in this loop has."""
        node = self.graph.nodes[loop]
        assert isinstance(node, Loop)
        return max(self.place(p).replicas for p in self.projection.placement.members(node))

    def slots(self, transfer: Transfer) -> int:
        """How many messages of a transfer may be under way to one receiver."""
        if self.free and self.free.is_sample(transfer):
            return self.free.window
        channel = self.channel_of(transfer)
        return channel.capacity + channel.lag

    def cuts(self, transfer: Transfer) -> int:
        """Into how many parts of the environments what crosses is cut."""
        return self.parts if transfer.loops and transfer.loops[0] in self.cut_loops else 1

    def __str__(self) -> str:
        return plan_text(self)


def _place_of(places: Iterable[Place], label: Label) -> str:
    """The place that runs a fragment."""
    by_name = [p.name for p in places if label.name in p.run]
    found = by_name or [p.name for p in places if label.role in p.run]
    if len(found) != 1:
        who = f"{len(found)} places ({', '.join(found)})" if found else "no place"
        raise PlanError(
            f"the fragment `{label.name}` (role `{label.role}`) is run by {who}. Put its name or "
            f"its role into `run` of exactly one place."
        )
    return found[0]
