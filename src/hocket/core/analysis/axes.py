"""Which axis of a value is the environments', and what each value on a replicated place is.

Nobody annotates anything. A step is traced at `num_envs` and at twice that; the environment axis of
a value is the one whose size is the number of environments both times. For a replicated place the
two programs are walked together, equation by equation, with the rules of `rules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxprs_in_params

from hocket.core.analysis.kinds import UNIFORM, ZERO, Kind, ShapePair, Site, join, local, nonlinear
from hocket.core.analysis.rules import apply_rule
from hocket.core.graph.trace import Block, Graph, Loop, Node, ValueId
from hocket.core.graph.walk import equations, scan_sizes, source_line
from hocket.errors import PlanError


class Axes:
    """The environment axes of a graph's values, and their kinds on a replicated place.

    `other` is the same step at another number of environments: twice as many, or for a replicated
    place as many as a replica has, since that is the program its replicas run.
    """

    def __init__(self, graph: Graph, other: Graph) -> None:
        self.graph, self.other = graph, other
        self._axes: dict[ValueId, int | None] = {}

    def grown(self, value: ValueId) -> list[int]:
        """The axes of a value that grow with the number of environments."""
        pair = zip(self.graph.values[value].shape, self.other.values[value].shape, strict=True)
        return [i for i, (a, b) in enumerate(pair) if a != b]

    def axis(self, value: ValueId) -> int | None:
        """The environment axis of a value; None where it has none, or not exactly one."""
        if value not in self._axes:  # asked for with every message
            self._axes[value] = self._find_axis(value)
        return self._axes[value]

    def _find_axis(self, value: ValueId) -> int | None:
        sizes = [
            [(i, g.num_envs) for i in self.grown(value) if g.values[value].shape[i] == g.num_envs]
            for g in (self.graph, self.other)
        ]
        exact = len(self.grown(value)) == len(sizes[0]) == len(sizes[1]) == 1
        return sizes[0][0][0] if exact else None

    def from_outside(self, value: ValueId) -> Kind:
        """The kind of a value that comes to a replicated place: split, or the same for all."""
        if value in self.graph.constants:
            pair = self.graph.constants[value], self.other.constants[value]
            return _constant(*pair, self.other.num_envs / self.graph.num_envs)
        axis = self.axis(value)
        if axis is not None:
            return Kind("per_env", axis, outer=1)
        return UNIFORM if not self.grown(value) else local("it has no environment axis of its own")

    def on_place(self, inside: Callable[[Node], bool]) -> dict[ValueId, Kind]:
        """The kind of every value that the nodes chosen by `inside` read or make."""
        kinds = {v: self.from_outside(v) for v in self.graph.block.inputs}
        self._block(self.graph.block, self.other.block, inside, kinds)
        return kinds

    def _block(
        self, a: Block, b: Block, inside: Callable[[Node], bool], kinds: dict[ValueId, Kind]
    ) -> None:
        for n, m in zip(a.nodes, b.nodes, strict=True):
            for v in n.ins:
                kinds.setdefault(v, self.from_outside(v))
            if inside(n):
                self._node(n, m, kinds)
            elif isinstance(n, Loop) and isinstance(m, Loop):
                self._loop(n, m, inside, kinds)

    def _node(self, n: Node, m: Node, kinds: dict[ValueId, Kind]) -> None:
        walker = _Walker(self.other.num_envs / self.graph.num_envs)
        operands = walker.operands(n.eqn, m.eqn, iter([kinds[v] for v in n.ins]))
        kinds |= dict(zip(n.outs, walker.equation(n.eqn, m.eqn, operands, n.where), strict=True))

    def _loop(
        self, n: Loop, m: Loop, inside: Callable[[Node], bool], kinds: dict[ValueId, Kind]
    ) -> None:
        """This place's part of a loop that crosses places, until the carry's kinds settle."""
        outs = n.body.outputs

        def body(given: Sequence[Kind]) -> list[Kind]:
            for v in _made(n.body):
                kinds.pop(v, None)
            kinds.update(zip(n.body.inputs, given, strict=True))
            self._block(n.body, m.body, inside, kinds)
            return [kinds.get(v) or self.from_outside(v) for v in outs]

        site = _site(n.eqn, m.eqn)
        results = _scan_kinds(n.eqn.params, site, [kinds[v] for v in n.ins], body)
        kinds |= zip(n.outs, results, strict=True)


def check_kind(axes: Axes, value: ValueId, kind: Kind, what: str, place: str) -> None:
    """Refuse a value that leaves a replicated place, or stays in its state, and is not fit to."""
    uneven = axes.grown(value) and axes.axis(value) is None
    if kind.tag == "local" and not uneven:
        reason = kind.why
    elif uneven:
        shape = list(axes.graph.values[value].shape)
        reason = (
            f"its shape {shape} grows with the environments but no axis is theirs alone, so it "
            f"cannot be split by environment: keep time and environments as two axes"
        )
    elif kind.tag == "partial":
        reason = (
            "it is reduced over this replica's environments: return it per environment, or wrap "
            "the mean in `averaged(...)`"
        )
    elif kind.degree and not kind.zero:
        reason = "it depends on the number of environments, which is another one in a replica"
    elif kind.tag == "per_env" and kind.outer > 1:
        reason = "its environments do not lie in their order"
    else:
        return
    raise PlanError(f"the place `{place}` cannot run as replicas: {what}: {reason}.")


def shrinks_to_one(graph: Graph, other: Graph) -> bool:
    """Whether some axis that grows with the environments has size one in the smaller program."""
    return _shrinks(graph.closed.jaxpr, other.closed.jaxpr)


def _shrinks(a: Any, b: Any) -> bool:
    for e, f in zip(a.eqns, b.eqns, strict=False):
        for u, v in zip(e.outvars, f.outvars, strict=False):
            sizes = zip(u.aval.shape, v.aval.shape, strict=False)
            if any(x != y == 1 for x, y in sizes):
                return True
        inner = zip(jaxprs_in_params(e.params), jaxprs_in_params(f.params), strict=False)
        if any(_shrinks(x, y) for x, y in inner):
            return True
    return False


def uses_averaged(node: Node) -> bool:
    return _contains_averaged(node.eqn)


def averages(node: Node) -> list[tuple[int, tuple[Any, ...]]]:
    """Every `averaged` of a node: how often it happens when the node runs once, and its arrays."""
    return list(_averages(node.eqn, lambda params: params["length"]))


def average_sites(node: Node) -> list[tuple[Any, ...]]:
    """The arrays of every `averaged` in a node's compiled program, where a loop is there once."""
    found = _averages(node.eqn, lambda params: min(int(params["unroll"]), params["length"]))
    return [arrays for times, arrays in found for _ in range(times)]


def _averages(eqn: JaxprEqn, times: Callable[[Any], int]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    if eqn.primitive.name == "averaged":
        avals: list[Any] = [v.aval for v in eqn.invars]
        yield 1, tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals)
    many = times(eqn.params) if eqn.primitive.name == "scan" else 1
    for jaxpr in jaxprs_in_params(eqn.params):
        for inner in jaxpr.eqns:
            yield from ((many * n, arrays) for n, arrays in _averages(inner, times))


def _made(block: Block) -> Iterator[ValueId]:
    for node, _ in block.walk():
        yield from node.outs
        yield from node.body.inputs if isinstance(node, Loop) else ()


def _constant(a: Any, b: Any, factor: float) -> Kind:
    """The kind of a number or array of the program, given the same at the other size."""
    if np.shape(a) != np.shape(b):
        return local(
            "a constant has an environment axis, and every replica would have the same one: make "
            "it in `init` and keep it in the state"
        )
    scalar = np.ndim(a) == 0 and not jnp.issubdtype(jnp.asarray(a).dtype, jax.dtypes.prng_key)
    if _same_constant(a, b) or (scalar and a != a and b != b):
        return ZERO if scalar and a == 0 else UNIFORM
    degree = _degree(float(a), float(b), factor) if scalar else None
    if degree is None:
        return local("a constant of the program depends on the number of environments")
    return Kind("uniform", degree=degree)


def _same_constant(a: Any, b: Any) -> bool:
    """Whether two traces closed over the same array."""
    return a is b or (np.shape(a) == np.shape(b) and np.array_equal(a, b))


def _degree(a: float, b: float, factor: float) -> int | None:
    """To which power of `factor`, by which the environments changed, a number changed."""
    for degree in (1, -1, 2, -2):
        if a and math.isclose(b / a, factor**degree, rel_tol=1e-6):
            return degree
    return None


def _site(a: JaxprEqn, b: JaxprEqn, within: str = "") -> Site:
    def shapes(us: Sequence[Any], vs: Sequence[Any]) -> list[ShapePair]:
        pairs = zip(us, vs, strict=True)
        return [ShapePair(tuple(u.aval.shape), tuple(v.aval.shape)) for u, v in pairs]

    values: list[Any] = [*a.invars, *a.outvars]
    floats = all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in values)
    ins, outs = shapes(a.invars, b.invars), shapes(a.outvars, b.outvars)
    return Site(a.primitive.name, a.params, ins, outs, source_line(a, within), floats)


class _Walker:
    """Walks two traces of a program together; `factor` is by how much the environments differ."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self._walked: dict[Any, list[Kind]] = {}

    def operands(self, a: JaxprEqn, b: JaxprEqn, kinds: Iterator[Kind]) -> list[Kind]:
        """The kinds of an equation's inputs: of its literals, and those given for the others."""
        pairs = zip(a.invars, b.invars, strict=False)
        return [self.literal(u, v) if isinstance(u, Literal) else next(kinds) for u, v in pairs]

    def literal(self, a: Any, b: Any) -> Kind:
        if not isinstance(a, Literal) or not isinstance(b, Literal):
            return local("a number of the program depends on the number of environments")
        return _constant(a.val, b.val, self.factor)

    def equation(self, a: JaxprEqn, b: JaxprEqn, kinds: Sequence[Kind], within: str) -> list[Kind]:
        name = a.primitive.name
        sizes = [(len(e.invars), len(e.outvars)) for e in (a, b)]
        same = name == b.primitive.name and sizes[0] == sizes[1]
        if not (same and _same_settings(a, b)):
            where = source_line(a, within)
            why = f"`{name}` at {where} is another one with another number of environments"
            return [local(why)] * len(a.outvars)
        site = _site(a, b, within)
        if name == "scan":
            inner = self.program(a.params["jaxpr"], b.params["jaxpr"], site.where)
            return _scan_kinds(a.params, site, kinds, inner)
        if name == "while":
            return self._while(a, b, kinds, site)
        if name == "cond":
            return self._cond(a, b, kinds, site)
        if name in _CALLS:
            return self.program(a.params[_CALLS[name]], b.params[_CALLS[name]], site.where)(kinds)
        return apply_rule(kinds, site)

    def program(self, a: Any, b: Any, within: str) -> Callable[[Sequence[Kind]], list[Kind]]:
        def known_walk(kinds: Sequence[Kind]) -> list[Kind]:
            """Physics are thousands of calls of a few functions, in loops walked several times."""
            key = id(a), id(b), *kinds
            if key not in self._walked:
                self._walked[key] = walk(kinds)
            return self._walked[key]

        def walk(kinds: Sequence[Kind]) -> list[Kind]:
            x, y = (j.jaxpr if isinstance(j, ClosedJaxpr) else j for j in (a, b))
            consts = [j.consts if isinstance(j, ClosedJaxpr) else [] for j in (a, b)]
            if any(len(p) != len(q) for p, q in ((x.eqns, y.eqns), consts)):
                why = "the program has other equations with another number of environments"
                return [local(why)] * len(x.outvars)
            known = dict(zip(x.invars, kinds, strict=True))
            for v, c, d in zip(x.constvars, *consts, strict=True):
                known[v] = _constant(c, d, self.factor)
            for e, f in zip(x.eqns, y.eqns, strict=True):
                given = iter([known[v] for v in e.invars if not isinstance(v, Literal)])
                outs = self.equation(e, f, self.operands(e, f, given), within)
                known |= dict(zip(e.outvars, outs, strict=True))
            return [
                self.literal(u, v) if isinstance(u, Literal) else known[u]
                for u, v in zip(x.outvars, y.outvars, strict=True)
            ]

        return known_walk

    def _while(self, a: JaxprEqn, b: JaxprEqn, kinds: Sequence[Kind], site: Site) -> list[Kind]:
        nc, nb = a.params["cond_nconsts"], a.params["body_nconsts"]
        cond, body = (
            self.program(a.params[name], b.params[name], site.where)
            for name in ("cond_jaxpr", "body_jaxpr")
        )
        carry = list(kinds[nc + nb :])
        while True:
            outs = body([*kinds[nc : nc + nb], *carry])
            after = [join([k, o], site) for k, o in zip(carry, outs, strict=True)]
            if after == carry:
                (predicate,) = cond([*kinds[:nc], *carry])
                return _under(predicate, a, site, carry)
            carry = after

    def _cond(self, a: JaxprEqn, b: JaxprEqn, kinds: Sequence[Kind], site: Site) -> list[Kind]:
        predicate, *operands = kinds
        branches = [
            self.program(x, y, site.where)(operands)
            for x, y in zip(a.params["branches"], b.params["branches"], strict=True)
        ]
        return _under(predicate, a, site, [join(ks, site) for ks in zip(*branches, strict=True)])


def _same_settings(a: JaxprEqn, b: JaxprEqn) -> bool:
    """Whether the parameters agree in all numbers but the sizes of axes that grow."""
    pairs: list[Any] = [*zip(a.invars, b.invars), *zip(a.outvars, b.outvars)]  # noqa: B905
    sizes = {size for u, v in pairs for size in zip(u.aval.shape, v.aval.shape, strict=False)}
    return all(_same(v, b.params.get(k), sizes) for k, v in a.params.items())


def _same(a: Any, b: Any, sizes: set[tuple[int, int]]) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        inner = [(x, y) for x, y in zip(a, b, strict=False) if _plain(x)]
        return len(a) == len(b) and all((x, y) in sizes or _same(x, y, sizes) for x, y in inner)
    return not _plain(a) or a == b or (a != a and b != b)


def _plain(x: Any) -> bool:
    return isinstance(x, int | float | str | tuple)


# Calls that only wrap a program, and the parameter that holds it.
_CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}


def _scan_kinds(
    params: dict[str, Any],
    site: Site,
    kinds: Sequence[Kind],
    body: Callable[[Sequence[Kind]], list[Kind]],
) -> list[Kind]:
    nc, nk = scan_sizes(params)
    consts, carry, xs = list(kinds[:nc]), list(kinds[nc : nc + nk]), kinds[nc + nk :]
    slices = [_first_axis(k, -1, site) for k in xs]
    while True:
        outs = body([*consts, *carry, *slices])
        after = [join([k, o], site) for k, o in zip(carry, outs[:nk], strict=True)]
        if after == carry:
            return [*carry, *(_first_axis(k, +1, site) for k in outs[nk:])]
        carry = after


def _first_axis(kind: Kind, by: int, site: Site) -> Kind:
    if kind.tag != "per_env":
        return kind
    if kind.axis + by < 0:
        return local(f"`scan` at {site.where} goes through the environments one by one")
    return Kind("per_env", kind.axis + by, kind.outer, kind.degree, kind.zero)


def _under(predicate: Kind, eqn: JaxprEqn, site: Site, results: list[Kind]) -> list[Kind]:
    """What a branch or loop makes, where the predicate may differ between replicas."""
    if predicate.tag == "uniform" and not predicate.degree:
        return results
    if _contains_averaged(eqn):
        raise PlanError(
            f"`averaged` stands under a `{site.name}` at {site.where} whose predicate is not the "
            f"same on every replica, so they would wait for each other for ever. Average the "
            f"predicate, or take `averaged` out. ({predicate.why or 'it is ' + predicate.tag})"
        )
    if predicate.tag == "per_env":  # `vmap` of a loop: who is done waits, unchanged, for the others
        return [nonlinear([k, predicate], site) for k in results]
    why = (
        predicate.why
        or f"`{site.name}` at {site.where} has a predicate that differs between replicas"
    )
    return [local(why)] * len(results)


def _contains_averaged(eqn: JaxprEqn) -> bool:
    return any(inner.primitive.name == "averaged" for inner in equations(eqn))
