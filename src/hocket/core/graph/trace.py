"""The graph of a training step: its fragments, its loops, and the values that flow between them.

Tracing turns `step` into a first-order program, which is read here. Every value and every node gets
a number that does not depend on the number of environments, so that a graph traced for a replica's
share of them matches the graph for all of them node by node.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NewType

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import source_info_util
from jax.extend.core import (
    ClosedJaxpr,
    DebugInfo,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    jaxpr_as_fun,
)

from hocket.core.graph.digest import digest_of
from hocket.core.graph.walk import count_calls, label_of, labels_of, scan_sizes, source_line
from hocket.core.program import fragment as fragments
from hocket.core.program.algorithm import Algorithm
from hocket.core.program.contract import check_names, check_step, leaf_names
from hocket.core.program.fragment import Label, exact_fragments
from hocket.core.program.service import served_state
from hocket.core.program.tuning import PLAIN, Tuning, tuned
from hocket.errors import ContractError
from hocket.system.on_host import on_host
from hocket.system.text import bytes_text

source_info_util.register_exclusion(fragments.__file__)

ValueId = NewType("ValueId", int)
"""The number of a value: its index in `Graph.values`."""
NodeId = NewType("NodeId", int)
"""The number of a node: its index in `Graph.nodes`."""


@dataclass(frozen=True)
class Value:
    """An array of the program: its name for people, shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: Any

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Node:
    """One equation of the program: a fragment, or glue between fragments."""

    id: NodeId
    title: str
    labels: tuple[Label, ...]
    ins: tuple[ValueId, ...]
    outs: tuple[ValueId, ...]
    where: str
    eqn: JaxprEqn

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Run the equation on the values of its `ins`."""
        inputs = [v for v in self.eqn.invars if not isinstance(v, Literal)]
        about = DebugInfo("segment", self.title, None, None)
        alone = Jaxpr((), inputs, self.eqn.outvars, [self.eqn], self.eqn.effects, about)
        return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*values)


@dataclass(frozen=True, eq=False)
class Block:
    """A sequence of nodes: the whole step, or the body of a loop."""

    inputs: tuple[ValueId, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[ValueId, ...]

    def walk(self, times: int = 1) -> Iterator[tuple[Node, int]]:
        """Yield every node at any depth, a loop before its body, and how often each runs."""
        for node in self.nodes:
            yield node, times
            if isinstance(node, Loop):
                yield from node.body.walk(times * node.length)


class Given(NamedTuple):
    """A value that a loop reads: all of it in every pass, or one row of it in each."""

    outside: ValueId
    inside: ValueId


class Carried(NamedTuple):
    """A value that a loop carries: each pass turns it into the value for the next pass."""

    first: ValueId
    """The value before the loop."""
    inside: ValueId
    """The value that a pass begins with."""
    next: ValueId
    """The value that a pass leaves for the next one."""
    after: ValueId
    """The value after the loop."""

    @property
    def is_kept(self) -> bool:
        """True if no pass changes the value."""
        return self.next == self.inside


class Stacked(NamedTuple):
    """An array that a loop makes: each pass makes one row, and after the loop they are stacked."""

    row: ValueId
    after: ValueId


@dataclass(frozen=True, eq=False)
class Loop(Node):
    """A `scan` with fragments inside. A `scan` without any is a plain node."""

    body: Block
    length: int
    reverse: bool
    consts: tuple[Given, ...]
    carry: tuple[Carried, ...]
    xs: tuple[Given, ...]
    ys: tuple[Stacked, ...]


@dataclass(frozen=True, eq=False)
class Graph:
    """A step traced for `num_envs` environments."""

    algorithm: Algorithm
    num_envs: int
    exact: bool
    closed: ClosedJaxpr
    state: Any
    metrics: Any
    block: Block
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    constants: dict[ValueId, Any]
    """The values that every place has by itself: literals, and arrays that `step` closed over."""
    served: bool = False
    """True if services keep every part of the state that they can."""
    _others: dict[tuple[int, Tuning], Graph] = field(default_factory=dict, init=False, repr=False)
    """Graphs of the same step for another number of environments or `Tuning`, freed with this one.
    A module-level cache would keep the constants of their programs, which can be gigabytes."""

    @property
    def num_leaves(self) -> int:
        """The number of arrays in the state."""
        return len(jax.tree.leaves(self.state))

    @property
    def next_state(self) -> dict[ValueId, ValueId]:
        """The leaves of the state -> the values that replace them after the step."""
        return dict(zip(self.block.inputs, self.block.outputs, strict=False))

    @property
    def reported(self) -> tuple[ValueId, ...]:
        """The values that are metrics, in alphabetical order of the metrics' names."""
        return self.block.outputs[self.num_leaves :]

    @property
    def labels(self) -> tuple[Label, ...]:
        """The fragments of the step, each once, in the order of the program."""
        return tuple(dict.fromkeys(label for node in self.block.nodes for label in node.labels))

    @functools.cached_property
    def env_steps(self) -> int:
        """The number of environment steps in one iteration."""
        return self.num_envs * count_calls(self.closed.jaxpr, "env")

    @functools.cached_property
    def digest(self) -> str:
        """A short text that is equal for equal programs, in every process."""
        return digest_of(self.closed, [v.name for v in self.values[: self.num_leaves]])

    def step(self, state: Any) -> tuple[Any, Any]:
        """Run the algorithm's step from this trace, without tracing it again."""
        outs = jaxpr_as_fun(self.closed)(*jax.tree.leaves(state))
        return jax.tree.unflatten(jax.tree.structure((self.state, self.metrics)), outs)

    def at(self, num_envs: int, choice: Tuning = PLAIN) -> Graph:
        """Return the same step traced for another number of environments or another `Tuning`."""
        if (num_envs, choice) == (self.num_envs, PLAIN):
            return self
        if (num_envs, choice) not in self._others:
            self._others[num_envs, choice] = _traced_otherwise(self, num_envs, choice)
        return self._others[num_envs, choice]

    def __str__(self) -> str:
        head = (
            f"{type(self.algorithm).__name__}: {self.num_envs} environments, "
            f"{self.env_steps:,} environment steps an iteration, "
            f"state {bytes_text(sum(v.nbytes for v in self.values[: self.num_leaves]))}"
        )
        return "\n".join([head, *_lines(self, self.block, "  ")])


def trace(
    algorithm: Algorithm, num_envs: int, *, exact: bool = False, served: bool = False
) -> Graph:
    """Trace `algorithm.step` into a graph; refuse a step that breaks its contract."""
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, found {num_envs}.")
    with exact_fragments(exact), on_host():
        key = jax.eval_shape(lambda: jax.random.key(0))
        state = jax.eval_shape(lambda key: init_state(algorithm, key, num_envs, served), key)
        # jax caches traces by function and ignores `exact`, so each call needs a new function.
        closed, out = jax.make_jaxpr(lambda s: algorithm.step(s), return_shape=True)(state)
    check_step(algorithm, state, out)
    reader = _Reader()
    names = [*leaf_names(state), *leaf_names(out[1], "metrics.")]
    inputs = tuple(
        reader.value(v, name) for v, name in zip(closed.jaxpr.invars, names, strict=False)
    )
    block = reader.block(closed.jaxpr, closed.consts, inputs)
    check_names(algorithm, (label for node in block.nodes for label in node.labels))
    return Graph(
        algorithm, num_envs, exact, closed, state, out[1], block,
        tuple(reader.values), tuple(reader.nodes), reader.constants, served,
    )  # fmt: skip


def init_state(algorithm: Algorithm, key: jax.Array, num_envs: int, served: bool = False) -> Any:
    """Return the first state. Call it only inside `jit`: eager results differ in the last bit."""
    with served_state(served):
        state = algorithm.init(key, num_envs)
    # Weak types would make the step's second trace differ from its first.
    return jax.tree.map(lambda x: jnp.asarray(x, x.dtype), state)


def first_state(graph: Graph, key: jax.Array) -> Any:
    """Return the first state of a run. One compiled program makes it, the same for every plan.

    Given an array of keys, return one state for each key, stacked. Each is equal to the state that
    its key gives alone.
    """

    def init(key: jax.Array) -> Any:
        return init_state(graph.algorithm, key, graph.num_envs, graph.served)

    return jax.jit(functools.partial(lax.map, init) if key.ndim else init)(key)


def _traced_otherwise(graph: Graph, num_envs: int, choice: Tuning) -> Graph:
    try:
        with tuned(choice):
            other = trace(graph.algorithm, num_envs, exact=graph.exact, served=graph.served)
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"{type(graph.algorithm).__name__} can be traced with {graph.num_envs} environments "
            f"and not with {num_envs}: read sizes from arrays (`x.shape[0]`), never from a "
            f"configuration.\n{error}"
        ) from error
    ours, theirs = (
        [(n.eqn.primitive.name, n.title, n.ins, getattr(n, "length", 0)) for n in g.nodes]
        for g in (graph, other)
    )
    if ours != theirs:
        nodes = zip(graph.nodes, ours, theirs, strict=False)
        first = next((node for node, a, b in nodes if a != b), graph.nodes[-1])
        raise ContractError(
            f"the step of {type(graph.algorithm).__name__} is a different program with {num_envs} "
            f"environments than with {graph.num_envs} (from `{first.title}` at {first.where} on). "
            f"Sizes may depend on the number of environments; equations and loop lengths may not."
        )
    return other


class _Reader:
    """Reads a program, numbering its values and nodes in the order in which it meets them."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.constants: dict[ValueId, Any] = {}

    def value(self, var: Any, name: str) -> ValueId:
        self.values.append(Value(name, tuple(var.aval.shape), var.aval.dtype))
        return ValueId(len(self.values) - 1)

    def constant(self, var: Any, value: Any) -> ValueId:
        number = self.value(var, "a constant")
        self.constants[number] = value
        return number

    def block(self, jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[ValueId]) -> Block:
        known: dict[Var, ValueId] = dict(zip(jaxpr.invars, inputs, strict=True))
        known |= {v: self.constant(v, c) for v, c in zip(jaxpr.constvars, consts, strict=True)}
        nodes = self._read(jaxpr, known)
        return Block(tuple(inputs), tuple(nodes), self._numbers(jaxpr.outvars, known))

    def _read(self, jaxpr: Jaxpr, known: dict[Var, ValueId]) -> list[Node]:
        nodes: list[Node] = []
        for eqn in jaxpr.eqns:
            labels = tuple(dict.fromkeys(labels_of(eqn)))
            if eqn.primitive.name == "jit" and labels and label_of(eqn) is None:
                # A jitted function that calls fragments: its nodes become nodes of this block.
                inner: ClosedJaxpr = eqn.params["jaxpr"]
                block = self.block(inner.jaxpr, inner.consts, self._numbers(eqn.invars, known))
                made, outs = block.nodes, block.outputs
            else:
                read = self._loop if eqn.primitive.name == "scan" and labels else self._node
                made = (read(eqn, labels, known),)
                self.nodes += made
                outs = made[0].outs
            nodes += made
            known |= zip(eqn.outvars, outs, strict=True)
        return nodes

    def _node(self, eqn: JaxprEqn, labels: tuple[Label, ...], known: dict[Var, ValueId]) -> Node:
        label, where = label_of(eqn), source_line(eqn)
        title = label.name if label else eqn.primitive.name
        outs = tuple(
            self.value(v, f"output {i} of `{title}`" + ("" if label else f" at {where}"))
            for i, v in enumerate(eqn.outvars)
        )
        ins = tuple(known[v] for v in eqn.invars if not isinstance(v, Literal))
        return Node(NodeId(len(self.nodes)), title, labels, ins, outs, where, eqn)

    def _loop(self, eqn: JaxprEqn, labels: tuple[Label, ...], known: dict[Var, ValueId]) -> Loop:
        ins = self._numbers(eqn.invars, known)
        body: ClosedJaxpr = eqn.params["jaxpr"]
        inputs = [
            self.value(v, self.values[number].name)
            for v, number in zip(body.jaxpr.invars, ins, strict=True)
        ]
        block = self.block(body.jaxpr, body.consts, inputs)
        outs = tuple(
            self.value(v, self.values[inner].name)
            for v, inner in zip(eqn.outvars, block.outputs, strict=True)
        )
        num_consts, num_carry = scan_sizes(eqn.params)
        given = tuple(map(Given, ins, inputs))
        firsts = given[num_consts : num_consts + num_carry]
        ends = zip(firsts, block.outputs, outs, strict=False)
        return Loop(
            NodeId(len(self.nodes)), "loop", labels, ins, outs, source_line(eqn), eqn, block,
            eqn.params["length"], eqn.params["reverse"],
            given[:num_consts], tuple(Carried(*first, last, after) for first, last, after in ends),
            given[num_consts + num_carry :],
            tuple(map(Stacked, block.outputs[num_carry:], outs[num_carry:])),
        )  # fmt: skip

    def _numbers(self, variables: Iterable[Any], known: dict[Var, ValueId]) -> tuple[ValueId, ...]:
        return tuple(
            self.constant(v, v.val) if isinstance(v, Literal) else known[v] for v in variables
        )


def _lines(graph: Graph, block: Block, indent: str) -> Iterator[str]:
    for node in block.nodes:
        if isinstance(node, Loop):
            yield f"{indent}repeat {node.length} times"
            yield from _lines(graph, node.body, indent + "  ")
        elif node.labels:
            sizes = [sum(graph.values[v].nbytes for v in side) for side in (node.ins, node.outs)]
            names = ", ".join(f"{label.name} ({label.role})" for label in node.labels)
            under = "" if label_of(node.eqn) else f"under `{node.title}`: "
            yield f"{indent}{under}{names:<{40 - len(indent)}} " + (
                f"in {bytes_text(sizes[0]):>10}   out {bytes_text(sizes[1]):>10}"
            )
