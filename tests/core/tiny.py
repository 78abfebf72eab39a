"""An algorithm whose step is a function of the test, and what such steps are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket import Place, Plan, Policy, fragment, trace
from hocket.core.graph.trace import Graph, Loop, Node, ValueId
from hocket.core.program.host import call_host
from hocket.core.program.service import At, Served, Service, Serving, Shapes, is_served, ticket_for

NUM_ENVS, LENGTH = 4, 3

State = dict[str, Any]
Step = Callable[[State], tuple[State, State]]

TWO = {"act": "actor", "env": "actor", "learn": "learner"}
THREE = {"act": "act", "env": "env", "learn": "learner"}


@fragment(role="act")
def act(x: Any) -> Any:
    return jnp.tanh(x)


@fragment(role="env")
def env(x: Any, action: Any) -> Any:
    return x + action


@fragment(role="learn")
def learn(w: Any, x: Any) -> Any:
    return w - x.sum()


@dataclass(frozen=True)
class Tiny:
    """An algorithm whose step is a function of the test."""

    run: Step
    names: tuple[str, ...]
    env_steps: int = 1
    num_envs: int = NUM_ENVS

    def init(self, key: Any, num_envs: int) -> State:
        """Return a number for `w`, a box for `box`, and one per environment for other names."""
        box = ticket_for(BOX) if is_served() else jnp.zeros(4)
        return {
            name: box if name.startswith("box") else jnp.zeros(() if name == "w" else num_envs)
            for name in self.names
        }

    def step(self, state: State) -> tuple[State, State]:
        return self.run(state)

    def policy(self, state: State, explore: bool = False) -> Policy:
        return Policy(lambda obs, memory, key: (obs, memory))


def traced(run: Step, names: str, *, num_envs: int = NUM_ENVS, served: bool = False) -> Graph:
    return trace(Tiny(run, tuple(names.split())), num_envs, served=served)


def planned(
    run: Step, names: str, where: Mapping[str, str] = TWO, *, served: bool = False, **options: Any
) -> Plan:
    """Return a plan with a fragment of each role on the place that `where` says."""
    places = {name: [role for role in where if where[role] == name] for name in where.values()}
    graph = traced(run, names, served=served)
    return Plan(graph, tuple(Place(name, run) for name, run in places.items()), **options)


def leaf(graph: Graph, name: str) -> ValueId:
    return next(v for v in graph.block.inputs if graph.values[v].name == name)


def titled(nodes: Sequence[Node], title: str) -> Node:
    (node,) = [n for n in nodes if n.title == title]
    return node


def only_loop(graph: Graph) -> Loop:
    (loop,) = [n for n in graph.block.nodes if isinstance(n, Loop)]
    return loop


# The host


@dataclass(frozen=True)
class Doubled:
    """A host function, as a program names it."""

    name: str = "doubled"
    keeps_state: bool = False
    service: None = None
    changes: bool = False

    def specs(self, *arrays: jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, ...]:
        return arrays

    def open(self, **_: Any) -> LiveDoubled:
        return LiveDoubled()


class LiveDoubled:
    """The function at work. Notes in `closed` how many were closed."""

    closed = 0

    def start(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays

    def finish(self) -> list[np.ndarray]:
        return [2 * x for x in self._arrays]

    def snapshot(self) -> None:
        return None

    def restore(self, pieces: Mapping[str, bytes]) -> None:
        raise AssertionError("it keeps no state")

    def overdue(self) -> None:
        return None

    def close(self) -> None:
        LiveDoubled.closed += 1


@fragment(role="env", name="env")
def on_host(x: Any) -> Any:
    return call_host(Doubled(), x)[0]


# A service. A box that no service keeps is an array, and the fragments take either.


@dataclass(frozen=True)
class Box:
    """A service that keeps four numbers. Nothing starts it here."""

    name: str = "box"

    def specs(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((4,), jnp.float32)

    def check(self, how: Serving, given: Sequence[Shapes] = ()) -> None:
        if how.carrier != "near":
            raise ValueError(f"no carrier {how.carrier}; given {given}")

    def about(self, how: Serving) -> str:
        return f"{self.name}: 4 numbers"

    def start(self, how: Serving) -> Any:
        raise AssertionError("nothing runs here")


BOX = Box()


@dataclass(frozen=True)
class BoxFunction:
    """A function of the box: `put` changes it, `get` reads it, `swap` does both."""

    verb: str
    service: Service = BOX
    keeps_state: bool = True

    @property
    def name(self) -> str:
        return f"{self.verb} of the box"

    @property
    def changes(self) -> bool:
        return self.verb != "get"

    def specs(self, *arrays: jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, ...]:
        ticket, value = arrays
        return {"put": (ticket,), "get": (value,), "swap": (ticket, value)}[self.verb]

    def open(self, *, watched: bool = False, at: At | None = None) -> Any:
        raise AssertionError("nothing runs here")


def call_box(verb: str, box: Served, x: Any) -> list[Any]:
    return call_host(BoxFunction(verb), box.ticket, x)


@fragment(role="env")
def put(box: Any, x: Any) -> Any:
    if not isinstance(box, Served):
        return box + x.sum()
    (ticket,) = call_box("put", box, x)
    return Served(ticket, box.by)


@fragment(role="learn")
def get(box: Any, x: Any) -> Any:
    if not isinstance(box, Served):
        return x + box.sum()
    (value,) = call_box("get", box, x)
    return value


@fragment(role="learn")
def swap(box: Any, x: Any) -> tuple[Any, Any]:
    if not isinstance(box, Served):
        return box + x.sum(), x + box.sum()
    ticket, value = call_box("swap", box, x)
    return Served(ticket, box.by), value
