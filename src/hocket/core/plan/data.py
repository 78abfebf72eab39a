"""A plan: which place runs which fragments on what, and what crosses between them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hocket.core.analysis.axes import Axes, average_sites, averages, shrinks_to_one, uses_averaged
from hocket.core.analysis.kinds import Kind
from hocket.core.graph.trace import Graph, Loop, Node, NodeId, ValueId
from hocket.core.plan.checks_free import FREE
from hocket.core.plan.text import plan_text
from hocket.core.program.fragment import Label
from hocket.core.program.service import Serving
from hocket.core.program.tuning import MOST_UNROLLED, PLAIN, Tuning
from hocket.core.projection.instructions import Projection, Transfer
from hocket.core.projection.project import project
from hocket.errors import PlanError


@dataclass(frozen=True)
class Place:
    """A named part of a plan with its hardware.

    `run` lists fragments, by role or by name (a name wins over a role). `replicas` are separate
    instances, each with an equal share of the environments and of the devices in `on`. `backend`
    swaps in other implementations where fragments have them: `jax`, `cpp`, `pallas`.
    """

    name: str
    run: tuple[str, ...]
    on: tuple[str, ...] = ()
    replicas: int = 1
    backend: str = "jax"

    def __init__(
        self,
        name: str,
        run: Iterable[str],
        on: Iterable[Any] = (),
        replicas: int = 1,
        backend: str = "jax",
    ) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "run", tuple(run))
        object.__setattr__(self, "on", tuple(str(device) for device in on))
        object.__setattr__(self, "replicas", replicas)
        object.__setattr__(self, "backend", backend)

    def share(self, index: int) -> tuple[str, ...]:
        """The devices of one replica: some of its own, or one that it shares with others."""
        if len(self.on) >= self.replicas:
            size = len(self.on) // self.replicas
            return self.on[index * size : (index + 1) * size]
        return self.on[index * len(self.on) // self.replicas :][:1]


@dataclass(frozen=True)
class Channel:
    """How values cross from one place to another. `lag=0` waits: the fused program's numbers."""

    capacity: int = 1
    """How many messages of one transfer may be under way, beside those that are late."""
    lag: int | str = 0
    """How many iterations the reader runs ahead, on values that much older: in iteration i it
    reads what was sent in iteration i - lag, and until there is such a one, what was sent first.
    `free`: it reads the newest there is, and nobody waits for it."""
    max_age: int = 0
    """Of a free channel: no sample that was made with what it carries is learned from more than so
    many iterations later. Whoever makes samples waits before that."""
    delay: float = 0.0
    """Seconds added to every message: what if the network were so slow?"""
    batch: int = 1
    """Of a free channel: how many samples, each of any one replica, make an iteration. It must
    divide the number of replicas; they are taken as they are ready, the oldest first."""
    reduce: str = "auto"
    """Of replicas in processes, from their place to itself: how `averaged` goes between them. By
    default in the way that was measured to be fastest."""
    pack: bool | None = None
    """Between processes: whether an end on one device sends or receives the small arrays of a
    message as one. None: where that is faster. No number depends on it."""
    transport: str = ""
    """What carries the messages, by name, or as `module:NAME` or `file.py:NAME`; empty for what is
    best where the ends are. No number depends on it."""

    @property
    def late(self) -> int:
        """By how many iterations; a free channel is none late, it is none in particular."""
        return self.lag if isinstance(self.lag, int) else 0


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
    """Who sees the same memory: all instances, those of one machine, or nobody."""


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
    """Places and channels for one graph. `check` refuses one that cannot run, by name.

    With a free channel, an iteration is one of the place that sends through it, on a sample of any
    replica of the place that reads, or on a batch of samples: on those shares of the environments.
    """

    graph: Graph = field(repr=False)
    places: tuple[Place, ...]
    channels: Mapping[str, Channel] = field(default_factory=dict)
    parts: int = 1
    """Into how many parts of the environments loops that cross places are cut: with two, one half
    steps while the other half's actions are computed."""
    launch: Launch = Launch()
    """How instances run."""
    serving: Serving = field(default_factory=Serving)
    """How services are reached, where the graph has some."""
    xla_flags: str = ""
    """Flags of XLA for the processes of a plan."""
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
    def free(self) -> tuple[str, str] | None:
        """Of the free channel: the place that learns, and the one that makes samples for it."""
        names = [name for name, channel in self.channels.items() if channel.lag == FREE]
        source, _, target = names[0].partition(" -> ") if names else ("", "", "")
        return (source, target) if names else None

    @functools.cached_property
    def makers(self) -> int:
        """Of a free channel: how many replicas make samples."""
        return self.place(self.free[1]).replicas if self.free else 1

    @property
    def batch(self) -> int:
        """How many of their samples make an iteration."""
        return self.channel(*self.free).batch if self.free else 1

    @functools.cached_property
    def shares(self) -> int:
        """How many iterations it takes to learn from every environment once."""
        return self.makers // self.batch

    @functools.cached_property
    def iteration(self) -> Graph:
        """The step as one iteration takes it."""
        return self.graph.at(self.graph.num_envs // self.shares)

    def envs_of(self, name: str) -> int:
        """The environments that a place, all of its replicas together, has in an iteration."""
        learns = self.free is not None and name == self.free[0]
        return (self.iteration if learns else self.graph).num_envs

    @property
    def window(self) -> int:
        """Of a free channel: how many samples of one replica may be waiting or under way."""
        assert self.free
        return self.channel(*self.free).max_age * self.batch // self.makers

    @functools.cached_property
    def where(self) -> dict[str, str]:
        """The place of every fragment."""
        return {label.name: self._place_of(label).name for label in self.graph.labels}

    @functools.cached_property
    def axes(self) -> Axes:
        return Axes(self.graph, self.graph.at(2 * self.graph.num_envs))

    @functools.cached_property
    def projection(self) -> Projection:
        places = {p.name: p.replicas for p in self.places}
        return project(self.graph, self.where, places, self.free and self.free[0])

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

    @functools.cached_property
    def averages(self) -> dict[str, tuple[int, int]]:
        """For each place that averages: how often in an iteration, and the bytes of a replica."""
        found = {}
        for name in self.averaging:
            mine = [(times * n, of) for node, times in self._of(name) for n, of in averages(node)]
            nbytes = sum(n * x.size * x.dtype.itemsize for n, of in mine for x in of)
            found[name] = sum(n for n, _ in mine), nbytes
        return found

    def average_sites(self, name: str) -> list[tuple[Any, ...]]:
        """The arrays of every place in a replica's programs where it averages."""
        nodes = [node for node, _ in self._of(name)]
        if any(isinstance(node, Loop) and uses_averaged(node) for node in nodes):
            # Which some hardware unrolls: then each pass of it has places of its own.
            nodes = [node for node, _ in self._of(name, Tuning(unroll=MOST_UNROLLED))]
        return [arrays for node in nodes for arrays in average_sites(node)]

    def _of(self, name: str, choice: Tuning = PLAIN) -> list[tuple[Node, int]]:
        """The nodes of a replica of a place, and how often each runs in an iteration."""
        share = self.graph.at(self.graph.num_envs // self.place(name).replicas, choice)
        owner = self.projection.placement.node
        return [(n, times) for n, times in share.block.walk() if owner.get(n.id) == name]

    def nodes(self) -> list[tuple[Node, int]]:
        """Every node, and how often it runs in an iteration."""
        return list(self.graph.block.walk())

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
    def flows(self) -> tuple[Flow, ...]:
        """What crosses in an iteration, with its bytes."""
        found: dict[tuple[str, str], list[Any]] = {}
        for t in self.projection.transfers:
            found.setdefault((t.source, t.target), []).append(t)
        return tuple(
            Flow(
                source, target,
                tuple(dict.fromkeys(self.graph.values[v].name for t in ts for v in t.values)),
                sum(t.times * self.cuts(t) * self._pairs(source, target) for t in ts),
                sum(t.times * self._nbytes(t, v) for t in ts for v in t.values),
            )
            for (source, target), ts in found.items()
        )  # fmt: skip

    def _pairs(self, source: str, target: str) -> int:
        if self.free and {source, target} == set(self.free):
            return self.batch if source == self.free[1] else 1  # samples, and a version
        return max(self.instances(source), self.instances(target))

    def _nbytes(self, transfer: Transfer, value: ValueId) -> int:
        if self.free and {transfer.source, transfer.target} == set(self.free):
            return self.iteration.values[value].nbytes
        split = self.axes.axis(value) is not None
        times = 1 if split else self.instances(transfer.target) * self.cuts(transfer)
        return self.graph.values[value].nbytes * times

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

    def cuts(self, transfer: Transfer) -> int:
        """Into how many parts of the environments what crosses is cut."""
        return self.parts if transfer.loops and transfer.loops[0] in self.cut_loops else 1

    def to_json(self) -> str:
        """The plan as text; `Plan.from_json` with the same graph gives it back."""
        return json.dumps(
            {
                "algorithm": type(self.graph.algorithm).__name__,
                "num_envs": self.graph.num_envs,
                "digest": self.graph.digest,
                "places": [asdict(place) for place in self.places],
                "channels": {name: asdict(channel) for name, channel in self.channels.items()},
                "parts": self.parts,
                "launch": asdict(self.launch),
                "serving": asdict(self.serving),
                "xla_flags": self.xla_flags,
                "notes": list(self.notes),
                "words": self.words,
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
        return Plan(
            graph, tuple(places), channels, data["parts"], Launch(**data["launch"]),
            Serving(**data["serving"]), data["xla_flags"], tuple(data["notes"]), data["words"],
        )  # fmt: skip

    def __str__(self) -> str:
        return plan_text(self)

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
