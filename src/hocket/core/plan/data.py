"""A plan as data: which place runs which fragments on what, and how values cross between them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from hocket.core.analysis.averages import uses_averaged
from hocket.core.analysis.axes import Axes, shrinks_to_one
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
    """A named part of a plan: the fragments that it runs, and its hardware.

    `run` lists fragments by role or by name; a name wins over a role. `replicas` are separate
    instances, each with an equal share of the environments and of the devices in `on`. `backend`
    swaps in other implementations for the functions that have them: `jax`, `cpp`, `pallas`.
    """

    name: str
    run: tuple[str, ...]
    on: tuple[DeviceId, ...] = ()
    """The place's devices. They may be given as devices of a cluster, as ids, or as text."""
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
        vars(self).update(given, on=device_ids(on))  # the class is frozen

    def share(self, index: int) -> tuple[DeviceId, ...]:
        """Return the devices of replica `index`. If replicas outnumber devices, some share one."""
        size, begin = max(1, len(self.on) // self.replicas), index * len(self.on) // self.replicas
        return self.on[begin : begin + size]

    def node(self, index: int) -> str:
        """Return the node on which a replica runs; "" for the machine of the run."""
        return next((device.node for device in self.share(index)), "")


@dataclass(frozen=True)
class Channel:
    """How values cross between two places. Without a lag, the numbers are those of one program."""

    capacity: int = 1
    """How many messages of a transfer may be under way at once if `lag` is 0. In general,
    `capacity + lag` messages may."""
    lag: int = 0
    """The age, in iterations, of the values that the reader gets. In iteration i it reads what was
    sent in iteration i - lag. In the first `lag` iterations it reads what was sent first."""
    delay: float = 0.0
    """Seconds added to every message, to try out a slow network."""
    pack: bool | None = None
    """True to send the small arrays of a message as one array; None to do so where it is faster.
    It must not be True if all instances share a process. An instance on several devices never
    packs. Numbers are the same either way."""
    transport: str = ""
    """The transport of the messages: a name, `module:NAME` or `file.py:NAME`. "" chooses the best
    between the two ends. No number depends on it."""


@dataclass(frozen=True)
class Mean:
    """How `averaged` is computed between the replicas of one place, if these are processes."""

    way: str = ""
    """The way to average: a name, `module:NAME` or `file.py:NAME`. With "" all ways are
    measured, and the fastest is taken."""
    delay: float = 0.0
    """Seconds added to every mean, to try out a slow network."""


@dataclass(frozen=True)
class Launch:
    """The launcher that a plan needs, and its abilities. The default is threads of this process.

    The plan is refused if the launcher called `name` does not have exactly these abilities.
    """

    name: str = ""
    """The name of the launcher; "" for threads of the run's own process."""
    one_process: bool = True
    """True if all instances are in the process of the run. They are handed arrays instead of bytes,
    and cannot have settings of their own that a process reads at its start, such as XLA flags."""
    one_program: bool = True
    """True if the replicas of a place that uses `averaged` run as one program, which maps over
    them like `vmap`."""
    shares_memory: Literal["all", "node", "none"] = "all"
    """The instances that can share memory: `all`, those on the same machine (`node`), or `none`."""
    nodes: bool = False
    """True if instances run on the nodes that their devices name. On each of these, the launcher
    starts a steward, which starts the instances there."""

    def __post_init__(self) -> None:
        if self.shares_memory not in (known := ("all", "node", "none")):
            raise ValueError(unknown("value", self.shares_memory, known, "of `shares_memory`"))
        if self.one_program and not self.one_process:
            raise ValueError(
                f"the launcher `{self.name}` says that replicas are one program and that instances "
                f"are processes: one_program=True needs one_process=True."
            )
        if self.nodes and self.one_process:
            raise ValueError(
                f"the launcher `{self.name}` says that instances are on several nodes and in one "
                f"process: nodes=True needs one_process=False."
            )


@dataclass(frozen=True, eq=False)
class Plan:
    """Places and channels for one graph. `check` refuses a plan that cannot run.

    In a free plan, an iteration is an iteration of the learner: it learns from one batch of
    samples, which come from a share of the environments.
    """

    graph: Graph = field(repr=False)
    places: tuple[Place, ...]
    channels: Mapping[str, Channel] = field(default_factory=dict)
    """The channels that are not the default one, under keys such as `actor -> learner`."""
    means: Mapping[str, Mean] = field(default_factory=dict)
    """Place -> how its replicas average, for places that do not use the default."""
    schedule: Schedule = LOCKSTEP
    parts: int = 1
    """The number of parts into which the environments are cut in loops that cross places. With two,
    one half steps while the actions of the other half are computed."""
    launch: Launch = Launch()
    """How instances run."""
    serving: Serving = field(default_factory=Serving)
    """How services run, if the graph has any."""
    compiler_flags: str = ""
    """Flags of XLA for the processes of this plan."""
    notes: tuple[str, ...] = ()
    """Lines in which the strategy explains its choices."""
    words: str = ""
    """The strategy in words, with the options that a search chose. A run's configuration keeps
    them, since a later search may choose other options. "" without a search."""
    ship: tuple[str, ...] = ()
    """The folders, packages and files of code to send to the nodes of a cluster. If empty, these
    are the folders of the user's own modules that the nodes import."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", tuple(self.places))

    def channel(self, source: str, target: str) -> Channel:
        """Return how values cross from one place to another."""
        return self.channels.get(f"{source} -> {target}", Channel())

    def channel_of(self, transfer: Transfer) -> Channel:
        return self.channel(transfer.source, transfer.target)

    def place(self, name: str) -> Place:
        return next(place for place in self.places if place.name == name)

    @functools.cached_property
    def free(self) -> Sampling | None:
        """The learner and the makers that do not wait for each other; None if every place waits."""
        if not (isinstance(self.schedule, Free) and self.schedule.pairs):
            return None
        pair = self.schedule.pairs[0]
        return Sampling(
            pair.learner, pair.makers, self.place(pair.makers).replicas, pair.max_age, pair.batch
        )

    @functools.cached_property
    def iteration(self) -> Graph:
        """The graph of the step for as many environments as one iteration uses.

        An iteration uses all environments. In a free plan, it uses those of one batch of samples.
        """
        return self.graph.at(self.graph.num_envs // (self.free.shares if self.free else 1))

    def envs_of(self, name: str) -> int:
        """Return the number of environments in one iteration, over all replicas of a place."""
        learns = self.free is not None and name == self.free.learner
        return (self.iteration if learns else self.graph).num_envs

    @functools.cached_property
    def where(self) -> dict[str, str]:
        """The name of a fragment -> the name of the place that runs it."""
        return {label.name: _place_of(self.places, label) for label in self.graph.labels}

    @functools.cached_property
    def axes(self) -> Axes:
        """The environment axes of all values: the axes whose size differs between two traces.

        The traces are for two numbers of environments. If a place has replicas, the second number
        is the share of one replica, since the step is traced for it anyway.
        """
        graph = self.graph
        shared = (p for p in self.places if p.replicas > 1 and graph.num_envs % p.replicas == 0)
        place = next(shared, None)
        return self.axes_on(place) if place else Axes(graph, graph.at(2 * graph.num_envs))

    @functools.cached_property
    def projection(self) -> Projection:
        """The programs of all places, and the transfers between them."""
        places = {p.name: p.replicas for p in self.places}
        return project(self.graph, self.where, places, self.free and self.free.learner)

    @functools.cached_property
    def grouped(self) -> frozenset[str]:
        """The replicated places that use `averaged` and whose replicas run as one program.

        They do not run in threads. On one CPU device, threads would wait for each other in
        callbacks of compiled programs, and a callback that waits can hang XLA's thread pool.
        """
        return self.averaging if self.launch.one_program else frozenset()

    @functools.cached_property
    def averaging(self) -> frozenset[str]:
        """The replicated places that use `averaged`."""
        owner = self.projection.placement.node
        using = {owner.get(n.id) for n in self.graph.nodes if uses_averaged(n.eqn)}
        return frozenset(p.name for p in self.places if p.replicas > 1 and p.name in using)

    def instances(self, name: str) -> int:
        """Return how many instances run a place. Replicas that are one program count as one."""
        return 1 if name in self.grouped else self.place(name).replicas

    @functools.cached_property
    def kinds(self) -> dict[str, dict[ValueId, Kind]]:
        """Replicated place -> value -> the value's kind, which says how the replicas hold it."""
        placement = self.projection.placement
        return {
            place.name: self.axes_on(place).on_place(
                lambda n, name=place.name: placement.node.get(n.id) == name or placement.is_free(n)
            )
            for place in self.places
            if place.replicas > 1
        }

    def axes_on(self, place: Place, parts: int = 1) -> Axes:
        """Return the environment axes of all values, found by comparing two traces of the step.

        One trace is for all environments. The other is for the share of one replica, or for one of
        `parts` equal parts of that share.
        """
        graph, share = self.graph, self.graph.num_envs // (place.replicas * parts)
        if shrinks_to_one(graph, graph.at(share)):
            # jax leaves out equations on axes of size one, so the two traces would not match. With
            # twice the environments they match, and the kinds are the same.
            return Axes(graph.at(2 * graph.num_envs), graph.at(2 * share))
        return Axes(graph, graph.at(share))

    @functools.cached_property
    def cut_loops(self) -> frozenset[NodeId]:
        """The outermost loops that run separately for each of the plan's `parts` of environments.

        In such a loop, every message contains a value with an environment axis.
        """
        if self.parts == 1:
            return frozenset()
        inside = [t for t in self.projection.transfers if t.loops]
        uncut = [t for t in inside if all(self.axes.axis(v) is None for v in t.values)]
        return frozenset(t.loops[0] for t in inside) - {t.loops[0] for t in uncut}

    def blocks(self, loop: NodeId) -> int:
        """Return the number of blocks of environments in a loop that runs in `parts`.

        The place with the most replicas in the loop has one block for each replica. Every block is
        cut into `parts`, so that each replica has environments in each part.
        """
        node = self.graph.nodes[loop]
        assert isinstance(node, Loop)
        return max(self.place(p).replicas for p in self.projection.placement.members(node))

    def slots(self, transfer: Transfer) -> int:
        """Return how many messages of a transfer may be under way to one receiver."""
        if self.free and self.free.is_sample(transfer):
            return self.free.window
        channel = self.channel_of(transfer)
        return channel.capacity + channel.lag

    def cuts(self, transfer: Transfer) -> int:
        """Return how many messages carry a transfer: one for each part if its loop is cut."""
        return self.parts if transfer.loops and transfer.loops[0] in self.cut_loops else 1

    def __str__(self) -> str:
        return plan_text(self)


def _place_of(places: Iterable[Place], label: Label) -> str:
    """Return the place that runs a fragment."""
    by_name = [p.name for p in places if label.name in p.run]
    runners = by_name or [p.name for p in places if label.role in p.run]
    if len(runners) != 1:
        who = f"{len(runners)} places ({', '.join(runners)})" if runners else "no place"
        raise PlanError(
            f"the fragment `{label.name}` (role `{label.role}`) is run by {who}. Put its name or "
            f"its role into `run` of exactly one place."
        )
    return runners[0]
